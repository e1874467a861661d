"""One tenant attacks a server while another one works with it."""
