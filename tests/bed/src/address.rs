//! The addresses of test machines, by their number.

/// Ethernet address of machine `index`: locally administered, in QEMU's usual range.
pub fn mac(index: impl Into<u16>) -> String {
    let [high, low] = (index.into() + 1).to_be_bytes();
    format!("52:54:00:77:{high:02x}:{low:02x}")
}

/// IPv4 address of machine `index`.
pub fn ip(index: u8) -> String {
    format!("10.77.0.{}", index + 1)
}

/// IPv4 address of machine `index` with its prefix length. All machines are in one subnet.
pub fn cidr(index: u8) -> String {
    format!("{}/24", ip(index))
}
