//! The VLAN tag that Linux takes out of a received frame (`skb_vlan_untag`) and gives separately. It is put back in its
//! place: without it every VLAN's frames would look untagged.

use weir_guestmem::Slice;
use weir_wire::vlan::TAG_LEN;
use weir_wire::{VnetHdr, vnet};

/// Bytes of the `virtio_net_hdr` of a packet socket: it has no `num_buffers`.
pub(crate) const VNET_LEN: usize = 10;
/// Both addresses of an Ethernet header, which a tag follows.
const ADDRESSES_LEN: usize = 12;
/// Header and addresses, which are moved to make room for a tag.
const FRONT_LEN: usize = VNET_LEN + ADDRESSES_LEN;

/// `sizeof(struct cmsghdr)`: a length of a word, level and type.
const CMSG_HEADER_LEN: usize = size_of::<usize>() + 8;
/// `struct tpacket_auxdata` has 20 bytes; its TCI and its TPID are the last.
const AUXDATA_LEN: usize = 20;

/// The tag of a received frame, TPID and TCI, from its control messages. This socket gets one kind of them:
/// `PACKET_AUXDATA`.
pub(crate) fn tag(control: &[u8]) -> Option<[u8; TAG_LEN]> {
    const LEVEL: usize = size_of::<usize>();
    let level = i32::from_ne_bytes(*control.get(LEVEL..)?.first_chunk()?);
    let kind = i32::from_ne_bytes(*control.get(LEVEL + 4..)?.first_chunk()?);
    if (level, kind) != (libc::SOL_PACKET, libc::PACKET_AUXDATA) {
        return None;
    }
    let auxdata: &[u8; AUXDATA_LEN] = control.get(CMSG_HEADER_LEN..)?.first_chunk()?;
    let status = u32::from_ne_bytes(*auxdata.first_chunk()?);
    if status & libc::TP_STATUS_VLAN_VALID == 0 {
        return None;
    }
    let tci = u16::from_ne_bytes([auxdata[16], auxdata[17]]);
    let tpid = match status & libc::TP_STATUS_VLAN_TPID_VALID {
        0 => libc::ETH_P_8021Q as u16, // 0x8100
        _ => u16::from_ne_bytes([auxdata[18], auxdata[19]]),
    };
    let ([a, b], [c, d]) = (tpid.to_be_bytes(), tci.to_be_bytes());
    Some([a, b, c, d])
}

/// Puts `tag` into a frame. The frame's `virtio_net_hdr` begins [`TAG_LEN`] bytes after the start of `slot`, and
/// afterwards at the start. A frame without room for addresses is left as it is: `false`.
pub(crate) fn put_back(slot: &Slice<'_>, tag: [u8; TAG_LEN]) -> bool {
    let Some(mut front) = slot.skip(TAG_LEN).read_array::<FRONT_LEN>() else { return false };
    let mut header = [0; VnetHdr::LEN];
    header[..VNET_LEN].copy_from_slice(&front[..VNET_LEN]);
    let mut header = VnetHdr::from_bytes(&header);
    // The kernel counts these offsets from the start of the frame without the tag.
    if header.flags & vnet::F_NEEDS_CSUM != 0 {
        header.csum_start = header.csum_start.saturating_add(TAG_LEN as u16);
    }
    if header.gso_type != vnet::GSO_NONE {
        header.hdr_len = header.hdr_len.saturating_add(TAG_LEN as u16);
    }
    front[..VNET_LEN].copy_from_slice(&header.to_bytes()[..VNET_LEN]);
    slot.write(&front);
    slot.skip(FRONT_LEN).write(&tag);
    true
}
