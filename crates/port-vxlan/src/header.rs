//! The header between UDP and the frame (RFC 7348 §5), and the sender's groups and isolation in it
//! (draft-smith-vxlan-group-policy).

/// Bytes of the header.
pub(crate) const LEN: usize = 8;

/// "The I flag MUST be set to 1 for a valid VXLAN Network ID"; the seven others are reserved.
const FLAG_VNI: u64 = 1 << 59;
/// The G bit: the header has an ID of the sender's groups.
const FLAG_GROUPS: u64 = 1 << 63;
/// The place of the ID, which has 16 bits.
const SET_ID_AT: u32 = 32;
/// The place of the network, which has 24 bits.
const VNI_AT: u32 = 8;
/// The last bit of the byte before the ID: the sender is isolated. The draft reserves it, and Linux takes no notice of it
/// in a header with G.
const FLAG_ISOLATED: u64 = 1 << 48;
/// Bits that name no network between hosts with the extension: the ID, and the byte before it with
/// D and A. The draft's D asks a receiver not to learn the sender's address, and A not to apply
/// rules. As in Linux, neither changes what the receiver does: another host does not decide which
/// rules of this host apply.
const OF_GROUPS: u64 = FLAG_GROUPS | 0x00ff_ffff << SET_ID_AT;

/// The header of a frame of the network `vni`, without groups.
pub(crate) fn plain(vni: u32) -> u64 {
    FLAG_VNI | u64::from(vni) << VNI_AT
}

/// The bits of a header for a sender in the groups with this ID, which may be isolated; none for one without either.
pub(crate) fn of_sender(set_id: u16, isolated: bool) -> u64 {
    match (set_id, isolated) {
        (0, false) => 0,
        (id, false) => FLAG_GROUPS | u64::from(id) << SET_ID_AT,
        (id, true) => FLAG_GROUPS | FLAG_ISOLATED | u64::from(id) << SET_ID_AT,
    }
}

/// The network that a header names. A sender that sets reserved bits uses an extension (another protocol inside), whose
/// frames would be misread: as in Linux, they belong to no network.
pub(crate) fn vni(header: [u8; LEN]) -> Option<u32> {
    vni_of(u64::from_be_bytes(header))
}

fn vni_of(header: u64) -> Option<u32> {
    let valid = header & !(0x00ff_ffff << VNI_AT) == FLAG_VNI;
    valid.then_some((header >> VNI_AT) as u32 & 0x00ff_ffff)
}

/// As [`vni`], for a header of a host with the extension.
pub(crate) fn vni_with_groups(header: [u8; LEN]) -> Option<u32> {
    vni_of(u64::from_be_bytes(header) & !OF_GROUPS)
}

/// The ID of the sender's groups; 0 without one.
pub(crate) fn set_id(header: [u8; LEN]) -> u16 {
    let header = u64::from_be_bytes(header);
    if header & FLAG_GROUPS == 0 { 0 } else { (header >> SET_ID_AT) as u16 }
}

/// True if the sender is isolated.
pub(crate) fn is_isolated(header: [u8; LEN]) -> bool {
    const BOTH: u64 = FLAG_GROUPS | FLAG_ISOLATED;
    u64::from_be_bytes(header) & BOTH == BOTH
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn rfc_7348_5_a_header_names_its_network() {
        assert_eq!(plain(0x0001_0203).to_be_bytes(), [8, 0, 0, 0, 1, 2, 3, 0]);
        for number in [0, 1, 100, 0xff_ffff] {
            assert_eq!(vni(plain(number).to_be_bytes()), Some(number));
        }
    }

    #[test]
    fn a_header_with_any_other_bit_names_none() {
        for bit in (0..64).filter(|bit| !(8 * 4..8 * 7).contains(bit)) {
            let mut header = plain(100).to_be_bytes();
            header[bit / 8] ^= 1 << (7 - bit % 8);
            assert_eq!(vni(header), None, "bit {bit}");
            // G, and the three bytes behind the flags.
            let of_groups = bit == 0 || (8..32).contains(&bit);
            assert_eq!(vni_with_groups(header), of_groups.then_some(100), "bit {bit}");
        }
    }

    #[test]
    fn a_header_has_the_id_where_the_draft_has_it() {
        let header = |isolated| (plain(0x0001_0203) | of_sender(0xabcd, isolated)).to_be_bytes();
        assert_eq!(header(false), [0x88, 0, 0xab, 0xcd, 1, 2, 3, 0]);
        assert_eq!(header(true), [0x88, 1, 0xab, 0xcd, 1, 2, 3, 0]);
        assert!(is_isolated([0x88, 0x49, 0, 0, 1, 2, 3, 0]), "without groups, with D and A");
        assert!(!is_isolated([0x08, 1, 0, 0, 1, 2, 3, 0]), "without G");
        assert_eq!(set_id([0x88, 0x48, 0xab, 0xcd, 1, 2, 3, 0]), 0xabcd, "with D and A");
        assert_eq!(set_id([0x08, 0, 0xab, 0xcd, 1, 2, 3, 0]), 0, "without G");
        assert_eq!(of_sender(0, false), 0);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(number in 0..1_u32 << 24, id: u16, isolated: bool) {
            let header = (plain(number) | of_sender(id, isolated)).to_be_bytes();
            prop_assert_eq!(vni_with_groups(header), Some(number));
            prop_assert_eq!((set_id(header), is_isolated(header)), (id, isolated));
            let is_plain = id == 0 && !isolated;
            prop_assert_eq!(vni(header), is_plain.then_some(number), "others take no such frame");
        }

        #[test]
        fn a_header_without_the_extension_is_read_alike_by_all(header: [u8; LEN]) {
            if let Some(number) = vni(header) {
                prop_assert_eq!(vni_with_groups(header), Some(number));
                prop_assert_eq!((set_id(header), is_isolated(header)), (0, false));
            }
        }
    }
}
