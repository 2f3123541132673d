"""Configs as a controller decides them: which value is in force, what may be changed, and what
follows from it.
"""
