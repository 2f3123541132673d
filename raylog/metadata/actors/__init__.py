"""Brokers, disks and server actors as a controller decides them: who is admitted, who is dead, what
is started, moved or ended.
"""
