//! weir-port-vhost
