//! The number of a TAP's queues that processes have attached, as the kernel shows it (rtnetlink(7)).

use std::io;

use rustix::io::retry_on_intr;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
};

/// The request for one link, its answer, and the kernel's error (`linux/rtnetlink.h`, `linux/netlink.h`).
const RTM_GETLINK: u16 = 18;
const RTM_NEWLINK: u16 = 16;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
/// `struct nlmsghdr`, and `struct ifinfomsg` behind it.
const HEADER_LEN: usize = 16;
const LINK_LEN: usize = 16;
/// The attributes that lead to the counts (`linux/if_link.h`).
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_DATA: u16 = 2;
/// Queues in use, and queues that their process has switched off. A TAP with one queue has neither attribute.
const COUNTS: [u16; 2] = [8, 9];
/// The type of an attribute, without its flags (`NLA_TYPE_MASK`).
const TYPE_MASK: u16 = 0x3fff;
/// The kernel describes one link in less than this.
const ANSWER_LEN: usize = 32 << 10;

/// The queues that all processes together have attached to the interface with this number; `None` if it is no TAP with
/// several queues. The interface is in the calling thread's network namespace.
pub(crate) fn attached(index: u32) -> io::Result<Option<u32>> {
    let kind = SocketType::RAW;
    // rtnetlink is the first of netlink's protocols, and the default.
    let socket = socket_with(AddressFamily::NETLINK, kind, SocketFlags::CLOEXEC, None)?;
    bind(&socket, &SocketAddrNetlink::new(0, 0))?;
    send(&socket, &request(index), SendFlags::empty())?;
    let mut answer = vec![0; ANSWER_LEN];
    // The kernel has answered before the send returns.
    let (_, len) = retry_on_intr(|| recv(&socket, answer.as_mut_slice(), RecvFlags::DONTWAIT))?;
    counted(answer.get(..len).unwrap_or_default())
}

fn request(index: u32) -> Vec<u8> {
    let len = (HEADER_LEN + LINK_LEN) as u32;
    let mut bytes = len.to_ne_bytes().to_vec();
    bytes.extend(RTM_GETLINK.to_ne_bytes());
    bytes.extend(NLM_F_REQUEST.to_ne_bytes());
    bytes.resize(HEADER_LEN + 4, 0);
    bytes.extend(index.to_ne_bytes());
    bytes.resize(HEADER_LEN + LINK_LEN, 0);
    bytes
}

/// The sum of the counts in the kernel's answer.
fn counted(answer: &[u8]) -> io::Result<Option<u32>> {
    let kind = answer.get(4..).and_then(|it| it.first_chunk()).map(|it| u16::from_ne_bytes(*it));
    let body = answer.get(HEADER_LEN..).unwrap_or_default();
    match kind {
        Some(RTM_NEWLINK) => {
            let attributes = body.get(LINK_LEN..).unwrap_or_default();
            let counts =
                within(attributes, IFLA_LINKINFO).and_then(|it| within(it, IFLA_INFO_DATA));
            let count = |kind| counts.and_then(|it| within(it, kind)).and_then(number);
            let [used, disabled] = COUNTS.map(count);
            Ok(used.map(|used| used.saturating_add(disabled.unwrap_or(0))))
        }
        Some(NLMSG_ERROR) => {
            let errno = number(body).unwrap_or(0).cast_signed().saturating_neg();
            Err(io::Error::from_raw_os_error(errno))
        }
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// The value of the first attribute of a kind.
fn within(mut attributes: &[u8], kind: u16) -> Option<&[u8]> {
    loop {
        let [l0, l1, k0, k1] = *attributes.first_chunk()?;
        let len = usize::from(u16::from_ne_bytes([l0, l1]));
        let value = attributes.get(4..len)?;
        if u16::from_ne_bytes([k0, k1]) & TYPE_MASK == kind {
            return Some(value);
        }
        attributes = attributes.get(len.next_multiple_of(4)..)?;
    }
}

fn number(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = (4 + value.len() as u16).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn answer(kind: u16, body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_LEN];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes.extend(body);
        bytes
    }

    #[test]
    fn queues_in_use_and_disabled_ones_count() {
        let mut counts = attribute(COUNTS[0], &3_u32.to_ne_bytes());
        counts.extend(attribute(COUNTS[1], &2_u32.to_ne_bytes()));
        let info = [attribute(1, b"tun\0"), attribute(IFLA_INFO_DATA, &counts)].concat();
        let link = [vec![0; LINK_LEN], attribute(3, b"weir0\0"), attribute(IFLA_LINKINFO, &info)];
        let whole = answer(RTM_NEWLINK, &link.concat());
        assert_eq!(counted(&whole).unwrap(), Some(5));
        for len in 0..whole.len() {
            assert!(!matches!(counted(&whole[..len]), Ok(Some(_))), "it ends after {len} bytes");
        }
        let plain = [vec![0; LINK_LEN], attribute(3, b"lo\0")].concat();
        assert_eq!(counted(&answer(RTM_NEWLINK, &plain)).unwrap(), None);
    }

    #[test]
    fn an_error_is_the_kernels() {
        let no_device = (-libc::ENODEV).to_ne_bytes();
        let error = counted(&answer(NLMSG_ERROR, &no_device)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
        assert_eq!(attached(u32::MAX >> 1).unwrap_err().raw_os_error(), Some(libc::ENODEV));
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None).unwrap();
        let loopback = rustix::net::netdevice::name_to_index(&socket, "lo").unwrap();
        assert_eq!(attached(loopback).unwrap(), None, "no TAP");
    }
}
