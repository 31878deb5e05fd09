"""Real prompts, answered plainly and with everything on: are the answers the same, and are they right?"""
