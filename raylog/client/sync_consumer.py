class Consumer:
    pass
