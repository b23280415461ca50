//! The addresses of test machines, by their number.

/// Ethernet address of machine `index`: locally administered, in QEMU's usual range.
pub fn mac(index: u8) -> String {
    format!("52:54:00:77:00:{:02x}", index + 1)
}

/// IPv4 address of machine `index`.
pub fn ip(index: u8) -> String {
    format!("10.77.0.{}", index + 1)
}

/// The same with its prefix length: all machines are neighbours.
pub fn cidr(index: u8) -> String {
    format!("{}/24", ip(index))
}
