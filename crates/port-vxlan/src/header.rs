//! The header between UDP and the frame (RFC 7348 §5).

/// Bytes of the header.
pub(crate) const LEN: usize = 8;

/// "The I flag MUST be set to 1 for a valid VXLAN Network ID"; the seven others are reserved.
const FLAG_VNI: u8 = 0x08;

/// The header of a frame of the network `vni`, which has 24 bits.
pub(crate) fn of(vni: u32) -> [u8; LEN] {
    let [_, a, b, c] = vni.to_be_bytes();
    [FLAG_VNI, 0, 0, 0, a, b, c, 0]
}

/// The network that a header names. A sender that sets reserved bits uses an extension (a policy group, another
/// protocol inside), whose frames would be misread: as in Linux, they belong to no network.
pub(crate) fn vni(header: [u8; LEN]) -> Option<u32> {
    let [flags, r1, r2, r3, a, b, c, r4] = header;
    let valid = flags == FLAG_VNI && [r1, r2, r3, r4] == [0; 4];
    valid.then(|| u32::from_be_bytes([0, a, b, c]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc_7348_5_a_header_names_its_network() {
        assert_eq!(of(0x0001_0203), [8, 0, 0, 0, 1, 2, 3, 0]);
        for number in [0, 1, 100, 0xff_ffff] {
            assert_eq!(vni(of(number)), Some(number));
        }
    }

    #[test]
    fn a_header_with_any_other_bit_names_none() {
        for bit in (0..64).filter(|bit| !(8 * 4..8 * 7).contains(bit)) {
            let mut header = of(100);
            header[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(vni(header), None, "bit {bit}");
        }
    }
}
