"""Of the controllers themselves: the plan that says on which brokers they live, with the quorum's way
there, and the history that they tell.
"""
