//! weir-vhost-user
