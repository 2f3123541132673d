"""What every client needs of the network: connections, the cluster's metadata, and requests to
leaders and the controller.
"""
