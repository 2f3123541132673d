"""Transactions of producers: what users hold, what is asked of coordinators, and the pure machine that
decides.
"""
