"""Records and record batches, format 2: their bytes, compressed or not. Pure; knows nothing of
files, logs or the network.

``batch`` is the header view that servers work on, ``codec`` the fast encoding and decoding for
clients, ``pure`` its slow twin, ``compression`` the four codecs, ``control`` the markers of
transactions, ``varint`` the numbers inside records.
"""
