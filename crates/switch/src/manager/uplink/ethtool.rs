//! The interrupt coalescing of a network card for received frames, which `ethtool -c` shows and `ethtool -C` sets, by
//! generic netlink (Linux 5.6; the kernel's Documentation/networking/ethtool-netlink.rst).
//!
//! The kernel answers during the send, so no caller waits for an answer. Each request has its own socket, because
//! there are only a few requests a second.

use std::io;
use std::os::fd::OwnedFd;

use netlink_packet_core::{
    DecodeError, DefaultNla, Emitable, NLA_F_NESTED, NLM_F_ACK, NLM_F_REQUEST,
    NetlinkDeserializable, NetlinkHeader, NetlinkMessage, NetlinkPayload, NetlinkSerializable,
    NlasIterator,
};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};
use weir_agent::napi::Napi;
use weir_config::InterfaceName;

use super::Nic;

/// The family that resolves the names of other families, and its request (`GENL_ID_CTRL`, linux/genetlink.h).
const CONTROLLER: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
const ETHTOOL: &str = "ethtool";
/// The version of both families.
const VERSION: u8 = 1;

/// linux/ethtool_netlink.h.
const COALESCE_GET: u8 = 19;
const COALESCE_SET: u8 = 20;
const HEADER: u16 = 1;
const HEADER_DEV_NAME: u16 = 2;
const RX_USECS: u16 = 2;
const USE_ADAPTIVE_RX: u16 = 11;

/// The length of the header: command, version and two reserved bytes.
const GENERIC_HEADER_LEN: usize = 4;
/// The longest answer describes the family, with an entry of 20 bytes for each of its commands.
const ANSWER_BYTES_MAX: usize = 16 << 10;

/// A card's interrupt coalescing for received frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Coalescing {
    /// The delay of an interrupt, in microseconds.
    pub(super) rx_usecs: u32,
    /// True if the driver chooses the delay by itself.
    pub(super) adaptive: bool,
}

/// Real cards.
#[derive(Debug)]
pub(super) struct Ethtool;

impl Nic for Ethtool {
    fn coalescing(&self, interface: &InterfaceName) -> io::Result<Option<Coalescing>> {
        let answer = Socket::open()?.coalesce(COALESCE_GET, interface, None)?;
        Ok(answer.and_then(|answer| coalescing_in(&answer)))
    }

    fn set_rx_usecs(&self, interface: &InterfaceName, usecs: u32) -> io::Result<()> {
        Socket::open()?.coalesce(COALESCE_SET, interface, Some(rx_usecs(usecs))).map(drop)
    }

    fn napis_set_alone(&self, ifindex: u32, polls: u64, timeout_ns: u64) -> Vec<Napi> {
        Napi::set_alone(ifindex, polls, timeout_ns)
    }

    fn restore_napis(&self, all: &[Napi]) -> io::Result<()> {
        Napi::restore(all)
    }
}

fn rx_usecs(usecs: u32) -> DefaultNla {
    DefaultNla::new(RX_USECS, usecs.to_ne_bytes().into())
}

/// The coalescing in an answer. A driver supports the attributes that its answer contains.
fn coalescing_in(answer: &Generic) -> Option<Coalescing> {
    let rx_usecs = answer.attribute(RX_USECS)?.try_into().ok()?;
    let adaptive = answer.attribute(USE_ADAPTIVE_RX).is_some_and(|value| value != [0]);
    Some(Coalescing { rx_usecs: u32::from_ne_bytes(rx_usecs), adaptive })
}

/// A generic netlink message, without the netlink header.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Generic {
    family: u16,
    /// The bytes of the message, beginning with the command.
    bytes: Vec<u8>,
}

impl Generic {
    fn new(family: u16, command: u8, attributes: &[DefaultNla]) -> Self {
        let mut bytes = vec![0; GENERIC_HEADER_LEN + attributes.buffer_len()];
        let (header, rest) = bytes.split_at_mut(GENERIC_HEADER_LEN);
        header.copy_from_slice(&[command, VERSION, 0, 0]);
        attributes.emit(rest);
        Self { family, bytes }
    }

    fn attribute(&self, kind: u16) -> Option<&[u8]> {
        let bytes = self.bytes.get(GENERIC_HEADER_LEN..)?;
        let mut attributes = NlasIterator::new(bytes).map_while(Result::ok);
        let attribute = attributes.find(|attribute| attribute.kind() == kind)?;
        // The four bytes before the value are the attribute's length and kind.
        attribute.into_inner().get(4..attribute.length().into())
    }

    /// A request whose answer ends with an acknowledgement.
    fn request(self) -> Vec<u8> {
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | NLM_F_ACK;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(self));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        bytes
    }
}

impl NetlinkSerializable for Generic {
    fn message_type(&self) -> u16 {
        self.family
    }

    fn buffer_len(&self) -> usize {
        self.bytes.len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        buffer.copy_from_slice(&self.bytes);
    }
}

impl NetlinkDeserializable for Generic {
    type Error = DecodeError;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, DecodeError> {
        Ok(Self { family: header.message_type, bytes: payload.into() })
    }
}

/// A connection to the kernel's `ethtool` family.
struct Socket {
    fd: OwnedFd,
    family: u16,
}

impl Socket {
    fn open() -> io::Result<Self> {
        let (kind, flags) = (SocketType::RAW, SocketFlags::CLOEXEC);
        let fd = socket_with(AddressFamily::NETLINK, kind, flags, Some(netlink::GENERIC))?;
        let mut socket = Self { fd, family: CONTROLLER };
        let answer = socket.ask(GET_FAMILY, &[text(FAMILY_NAME, ETHTOOL)])?;
        let id = answer.as_ref().and_then(|answer| answer.attribute(FAMILY_ID)?.try_into().ok());
        socket.family = u16::from_ne_bytes(id.ok_or_else(|| io::Error::other("no family id"))?);
        Ok(socket)
    }

    fn coalesce(
        &self,
        command: u8,
        interface: &InterfaceName,
        attribute: Option<DefaultNla>,
    ) -> io::Result<Option<Generic>> {
        self.ask(command, &coalesce_attributes(interface.as_str(), attribute))
    }

    /// Sends a request; returns the kernel's answer if it is more than an acknowledgement.
    fn ask(&self, command: u8, attributes: &[DefaultNla]) -> io::Result<Option<Generic>> {
        let request = Generic::new(self.family, command, attributes).request();
        send(&self.fd, &request, SendFlags::empty())?;
        let mut answer = None;
        let mut buffer = vec![0; ANSWER_BYTES_MAX];
        loop {
            let (len, _) = recv(&self.fd, buffer.as_mut_slice(), RecvFlags::DONTWAIT)?;
            let mut rest = buffer.get(..len).unwrap_or_default();
            while !rest.is_empty() {
                let message = NetlinkMessage::deserialize(rest).map_err(io::Error::other)?;
                match message.payload {
                    NetlinkPayload::Error(end) => {
                        let errno = end.code.map(|code| code.get().saturating_neg());
                        return errno
                            .map_or(Ok(answer), |it| Err(io::Error::from_raw_os_error(it)));
                    }
                    NetlinkPayload::InnerMessage(message) => answer = Some(message),
                    _ => {}
                }
                // Messages are aligned to four bytes.
                let len = message.header.length.next_multiple_of(4);
                rest = rest.get(len as usize..).unwrap_or_default();
            }
        }
    }
}

fn coalesce_attributes(interface: &str, attribute: Option<DefaultNla>) -> Vec<DefaultNla> {
    let name = text(HEADER_DEV_NAME, interface);
    let mut header = vec![0; name.buffer_len()];
    name.emit(&mut header);
    let header = DefaultNla::new(HEADER | NLA_F_NESTED, header);
    std::iter::once(header).chain(attribute).collect()
}

fn text(kind: u16, text: &str) -> DefaultNla {
    DefaultNla::new(kind, [text.as_bytes(), b"\0"].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's header of a message: length, family, flags. This side chooses sequence number and port.
    fn message(family: u16, bytes: &[u8]) -> Vec<u8> {
        let len = 16 + u32::try_from(bytes.len()).unwrap();
        let flags = 5_u16.to_ne_bytes();
        [&len.to_ne_bytes()[..], &family.to_ne_bytes(), &flags, &[0; 8], bytes].concat()
    }

    /// The messages of ethtool 6.1 as strace shows them: `ethtool -c t0`, `ethtool -C t0 rx-usecs 300`.
    #[test]
    #[cfg(target_endian = "little")]
    fn requests_are_those_of_the_ethtool_program() {
        const FAMILY: &[u8] = b"\x03\x01\x00\x00\x0c\x00\x02\x00ethtool\x00";
        const GET: &[u8] = b"\x13\x01\x00\x00\x0c\x00\x01\x80\x07\x00\x02\x00t0\x00\x00";
        const SET: &[u8] = b"\x14\x01\x00\x00\x0c\x00\x01\x80\x07\x00\x02\x00t0\x00\x00";
        const RX_USECS_300: &[u8] = b"\x08\x00\x02\x00\x2c\x01\x00\x00";
        let attributes = [text(FAMILY_NAME, ETHTOOL)];
        let family = Generic::new(CONTROLLER, GET_FAMILY, &attributes).request();
        assert_eq!(family, message(CONTROLLER, FAMILY));
        let coalesce = |command, attribute| {
            Generic::new(0x15, command, &coalesce_attributes("t0", attribute)).request()
        };
        assert_eq!(coalesce(COALESCE_GET, None), message(0x15, GET));
        let set = coalesce(COALESCE_SET, Some(rx_usecs(300)));
        assert_eq!(set, message(0x15, &[SET, RX_USECS_300].concat()));
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn answers_say_what_a_driver_has() {
        const HEADER: &[u8] = b"\x14\x01\x00\x00\x14\x00\x01\x80\x08\x00\x01\x00\x04\x00\x00\x00\x07\x00\x02\x00t0\x00\x00";
        const RX_FRAMES: &[u8] = b"\x08\x00\x03\x00\x00\x00\x00\x00";
        const RX_USECS_300: &[u8] = b"\x08\x00\x02\x00\x2c\x01\x00\x00";
        let read = |parts: &[&[u8]]| {
            coalescing_in(&Generic { family: 0x15, bytes: [&[HEADER], parts].concat().concat() })
        };
        assert_eq!(read(&[RX_FRAMES]), None, "a TAP has no more");
        let fixed = Coalescing { rx_usecs: 300, adaptive: false };
        assert_eq!(read(&[RX_USECS_300, RX_FRAMES]), Some(fixed));
        for (bit, on) in [(0, false), (1, true)] {
            let adaptive = [5, 0, 0x0b, 0, bit, 0, 0, 0];
            let expected = Coalescing { adaptive: on, ..fixed };
            assert_eq!(read(&[RX_USECS_300, RX_FRAMES, &adaptive]), Some(expected));
        }
        for cut in 0..8 {
            assert_eq!(read(&[&RX_USECS_300[..cut]]), None, "{cut} bytes of it");
        }
        assert_eq!(coalescing_in(&Generic { family: 0x15, bytes: Vec::new() }), None);
    }

    fn errno(result: io::Result<impl Sized>) -> Option<i32> {
        result.err().and_then(|error| error.raw_os_error())
    }

    #[test]
    fn the_kernel_says_that_the_loopback_interface_has_no_such_settings() {
        let lo = "lo".parse().unwrap();
        let not_supported = rustix::io::Errno::OPNOTSUPP.raw_os_error();
        assert_eq!(errno(Ethtool.coalescing(&lo)), Some(not_supported));
        let none = "weir-no-such-if".parse().unwrap();
        let no_device = rustix::io::Errno::NODEV.raw_os_error();
        assert_eq!(errno(Ethtool.coalescing(&none)), Some(no_device));
    }

    /// Every kernel has a TAP, and a TAP takes one of these settings: its `rx-frames`.
    #[test]
    fn root_the_kernel_takes_what_is_set_and_refuses_what_a_tap_has_not() {
        const RX_MAX_FRAMES: u16 = 3;
        if !weir_testing::is_root("a TAP") {
            return;
        }
        let name = format!("wet{}", std::process::id());
        let ip = |args: &[&str]| {
            assert!(std::process::Command::new("ip").args(args).status().unwrap().success());
        };
        ip(&["tuntap", "add", "dev", &name, "mode", "tap"]);
        let tap: InterfaceName = name.parse().unwrap();
        let frames = || -> io::Result<Option<Vec<u8>>> {
            let answer = Socket::open()?.coalesce(COALESCE_GET, &tap, None)?;
            Ok(answer.and_then(|it| it.attribute(RX_MAX_FRAMES).map(<[u8]>::to_vec)))
        };
        let three = DefaultNla::new(RX_MAX_FRAMES, 3_u32.to_ne_bytes().into());
        let found = frames();
        let set =
            Socket::open().and_then(|socket| socket.coalesce(COALESCE_SET, &tap, Some(three)));
        let after = frames();
        let (usecs, refused) = (Ethtool.coalescing(&tap), Ethtool.set_rx_usecs(&tap, 300));
        ip(&["link", "del", &name]);
        assert_eq!(found.unwrap(), Some(vec![0; 4]));
        assert!(set.unwrap().is_none(), "an acknowledgement alone");
        assert_eq!(after.unwrap(), Some(3_u32.to_ne_bytes().to_vec()));
        assert_eq!(usecs.unwrap(), None);
        assert!(refused.is_err());
    }
}
