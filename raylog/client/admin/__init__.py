"""The admin client, and what it and the command tell of groups, actors, reassignments and differing
replicas.
"""
