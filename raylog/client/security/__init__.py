"""The admin client's calls about users and ACLs."""
