"""A disk as raylog formats it: what lies in its folder, who may open it, and how it is watched."""
