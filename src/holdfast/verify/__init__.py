"""`holdfast verify`: does a model give the same answers whatever the engine does?"""
