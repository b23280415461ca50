//! The interfaces that have a carrier, and a socket to the kernel's rtnetlink (rtnetlink(7)). The kernel answers during the
//! send, so nobody waits for an answer.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use netlink_packet_core::{
    DecodeError, Emitable, NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkDeserializable,
    NetlinkHeader, NetlinkMessage, NetlinkPayload, NetlinkSerializable, Parseable,
};
use netlink_packet_route::link::{LinkAttribute, LinkMessage};
use netlink_packet_route::neighbour::NeighbourMessage;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
};
use weir_limits::BOND_CHANGES_MAX;
use weir_wire::Mac;

/// `RTMGRP_LINK` of `linux/rtnetlink.h`: changes of interfaces.
const GROUP_LINKS: u32 = 1;
/// `IFF_UP` and `IFF_LOWER_UP` of `linux/if.h`: the interface was brought up, and has a carrier.
const CARRIES: u32 = 1 | 1 << 16;

/// Watches some interfaces. The watch needs no privilege.
#[derive(Debug)]
pub struct Links {
    changes: Socket,
    questions: Socket,
    watched: Vec<Watched>,
}

/// An interface.
#[derive(Debug)]
struct Watched {
    name: String,
    number: Option<u32>,
    mac: Option<Mac>,
    carries: bool,
}

impl Watched {
    fn new(name: String) -> Self {
        Self { name, number: None, mac: None, carries: false }
    }
}

impl Links {
    /// Watches the interfaces with these names.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn open(names: impl IntoIterator<Item = String>) -> io::Result<Self> {
        // Changes are subscribed to before the present state is read, so none is missed.
        let (changes, questions) = (Socket::open(GROUP_LINKS)?, Socket::open(0)?);
        let watched = names.into_iter().map(Watched::new).collect();
        let mut links = Self { changes, questions, watched };
        links.read_all()?;
        Ok(links)
    }

    /// The state of the interfaces, in the order of their names: true if it has a carrier.
    pub fn carriers(&self) -> impl Iterator<Item = bool> {
        self.watched.iter().map(|it| it.carries)
    }

    /// The addresses of the interfaces, as far as they have one.
    pub fn macs(&self) -> impl Iterator<Item = Option<Mac>> {
        self.watched.iter().map(|it| it.mac)
    }

    /// Reads changes, up to a bound. The descriptor stays readable if there are more.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn look(&mut self) -> io::Result<()> {
        let watched = &mut self.watched;
        let read = self.changes.changes(BOND_CHANGES_MAX, &mut |message| note(watched, &message));
        match read {
            Ok(_more) => Ok(()),
            // Changes were lost.
            Err(error) if error.raw_os_error() == Some(Errno::NOBUFS.raw_os_error()) => {
                self.read_all()
            }
            Err(error) => Err(error),
        }
    }

    /// Asks for the state of the interfaces. The kernel knows of a lost carrier at once, and may tell of it a second
    /// later.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn ask(&mut self) -> io::Result<()> {
        let watched = &mut self.watched;
        for place in 0..watched.len() {
            let Some(index) = watched.get(place).and_then(|it| it.number) else { continue };
            let mut question = LinkMessage::default();
            question.header.index = index;
            let question = Message::GetLink(question);
            match self.questions.ask(question, |message| note(watched, &message)) {
                Err(error) if error.raw_os_error() == Some(Errno::NODEV.raw_os_error()) => {
                    watched.get_mut(place).into_iter().for_each(|it| it.carries = false);
                }
                asked => asked?,
            }
        }
        Ok(())
    }

    fn read_all(&mut self) -> io::Result<()> {
        let watched = &mut self.watched;
        // An interface that is gone is not in the answer.
        watched.iter_mut().for_each(|it| it.carries = false);
        let question = Message::GetLink(LinkMessage::default());
        self.questions.dump(question, |message| note(watched, &message))
    }
}

impl AsFd for Links {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.changes.as_fd()
    }
}

/// Notes what a message says of a watched interface. An interface keeps its place if it is renamed: weir's sockets are
/// bound to its number.
fn note(watched: &mut [Watched], message: &Message) {
    let (link, is_there) = match message {
        Message::NewLink(link) => (link, true),
        Message::DelLink(link) => (link, false),
        _ => return,
    };
    let index = link.header.index;
    let known = watched.iter().position(|it| it.number == Some(index));
    let place = known.or_else(|| {
        let name = link.attributes.iter().find_map(|attribute| match attribute {
            LinkAttribute::IfName(name) => Some(name),
            _ => None,
        })?;
        // An interface that has come back under its name is another interface, and no socket is bound to it.
        watched.iter().position(|it| it.number.is_none() && it.name == *name)
    });
    if let Some(it) = place.and_then(|place| watched.get_mut(place)) {
        it.number = Some(index);
        it.carries = is_there && link.header.flags.bits() & CARRIES == CARRIES;
        let mac = link.attributes.iter().find_map(|attribute| match attribute {
            LinkAttribute::Address(bytes) => Some(Mac(bytes.as_slice().try_into().ok()?)),
            _ => None,
        });
        it.mac = mac.or(it.mac);
    }
}

/// The kernel gives a dump in pieces of at most this many bytes, if the reader has room for them (`netlink_dump`).
const MESSAGE_BYTES_MAX: usize = 32 << 10;

/// Makes the messages of rtnetlink that weir sends or reads, by their numbers in `linux/rtnetlink.h`. The library's list
/// of all messages would link the code of them all.
macro_rules! messages {
    ($($name:ident($type:ty) = $number:literal;)+) => {
        #[derive(Debug)]
        pub(crate) enum Message {
            $($name($type),)+
        }
        impl NetlinkSerializable for Message {
            fn message_type(&self) -> u16 {
                match self {
                    $(Self::$name(_) => $number,)+
                }
            }
            fn buffer_len(&self) -> usize {
                match self {
                    $(Self::$name(it) => it.buffer_len(),)+
                }
            }
            fn serialize(&self, buffer: &mut [u8]) {
                match self {
                    $(Self::$name(it) => it.emit(buffer),)+
                }
            }
        }
        impl NetlinkDeserializable for Message {
            type Error = DecodeError;
            fn deserialize(header: &NetlinkHeader, bytes: &[u8]) -> Result<Self, DecodeError> {
                match header.message_type {
                    $($number => <$type>::parse(bytes).map(Self::$name),)+
                    _ => Err("a message that weir does not read".into()),
                }
            }
        }
    };
}

messages! {
    NewLink(LinkMessage) = 16;
    DelLink(LinkMessage) = 17;
    GetLink(LinkMessage) = 18;
    SetLink(LinkMessage) = 19;
    NewNeighbour(NeighbourMessage) = 28;
    DelNeighbour(NeighbourMessage) = 29;
    GetNeighbour(NeighbourMessage) = 30;
}

/// A socket of rtnetlink.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
    buffer: Vec<u8>,
}

impl Socket {
    /// A socket that gets changes in these groups (`RTMGRP_*` of `linux/rtnetlink.h`, as bits). The
    /// socket needs no privilege.
    pub(crate) fn open(groups: u32) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // rtnetlink is the first of netlink's protocols, and the default.
        let fd = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        bind(&fd, &SocketAddrNetlink::new(0, groups))?;
        Ok(Self { fd, buffer: vec![0; MESSAGE_BYTES_MAX] })
    }

    /// Enlarges the kernel's buffer for changes that were not read yet (bytes), as far as the host allows.
    pub(crate) fn make_room(&self, bytes: usize) {
        use rustix::net::sockopt::{
            set_socket_recv_buffer_size, set_socket_recv_buffer_size_force,
        };
        let _ = set_socket_recv_buffer_size_force(&self.fd, bytes)
            .or_else(|_| set_socket_recv_buffer_size(&self.fd, bytes));
    }

    /// Makes a request of the kernel.
    ///
    /// # Errors
    /// The kernel's error.
    pub(crate) fn request(&mut self, message: Message, flags: u16) -> io::Result<()> {
        self.send(message, NLM_F_REQUEST | NLM_F_ACK | flags)?;
        self.read(&mut |_| ())
    }

    /// Asks the kernel, and returns each message of its answer.
    ///
    /// # Errors
    /// The kernel's error.
    pub(crate) fn ask(
        &mut self,
        message: Message,
        mut each: impl FnMut(Message),
    ) -> io::Result<()> {
        self.send(message, NLM_F_REQUEST | NLM_F_ACK)?;
        self.read(&mut each)
    }

    /// Reads all objects of a kind.
    ///
    /// # Errors
    /// The kernel's error.
    pub(crate) fn dump(
        &mut self,
        message: Message,
        mut each: impl FnMut(Message),
    ) -> io::Result<()> {
        self.send(message, NLM_F_REQUEST | NLM_F_DUMP)?;
        self.read(&mut each)
    }

    fn send(&self, message: Message, flags: u16) -> io::Result<()> {
        let mut header = NetlinkHeader::default();
        header.flags = flags;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        send(&self.fd, &bytes, SendFlags::empty())?;
        Ok(())
    }

    /// Reads an answer to its end.
    fn read(&mut self, each: &mut dyn FnMut(Message)) -> io::Result<()> {
        loop {
            let len = self.receive()?;
            for part in messages(self.buffer.get(..len).unwrap_or_default()) {
                match part {
                    NetlinkPayload::InnerMessage(message) => each(message),
                    NetlinkPayload::Error(end) => {
                        let errno = end.code.map(|code| code.get().saturating_neg());
                        return errno.map_or(Ok(()), |it| Err(io::Error::from_raw_os_error(it)));
                    }
                    NetlinkPayload::Done(_) => return Ok(()),
                    _ => {}
                }
            }
        }
    }

    /// Reads up to `most` changes; `true` if there may be more.
    ///
    /// # Errors
    /// [`Errno::NOBUFS`]: some changes were lost. Others are the kernel's errors.
    pub(crate) fn changes(
        &mut self,
        most: usize,
        each: &mut dyn FnMut(Message),
    ) -> io::Result<bool> {
        let mut seen = 0;
        while seen < most {
            let len = match self.receive() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                received => received?,
            };
            for part in messages(self.buffer.get(..len).unwrap_or_default()) {
                seen += 1;
                if let NetlinkPayload::InnerMessage(message) = part {
                    each(message);
                }
            }
        }
        Ok(true)
    }

    fn receive(&mut self) -> io::Result<usize> {
        let buffer = self.buffer.as_mut_slice();
        let received = retry_on_intr(|| recv(&self.fd, &mut *buffer, RecvFlags::TRUNC))?;
        match received {
            (_, len) if len > MESSAGE_BYTES_MAX => Err(Errno::MSGSIZE.into()),
            (_, len) => Ok(len),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The messages in the received bytes. Others than [`Message`] are passed over.
fn messages(mut bytes: &[u8]) -> impl Iterator<Item = NetlinkPayload<Message>> {
    let next = move || {
        if bytes.is_empty() {
            return None;
        }
        // Messages begin at multiples of four.
        let len = bytes.first_chunk().map_or(0, |len| u32::from_ne_bytes(*len)) as usize;
        let (message, rest) = match bytes.split_at_checked(len.next_multiple_of(4)) {
            Some(parts) if len > 0 => parts,
            _ => (bytes, &[][..]),
        };
        bytes = rest;
        Some(NetlinkMessage::deserialize(message).ok().map(|it| it.payload))
    };
    std::iter::from_fn(next).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(index: u32, name: &str, flags: u32) -> LinkMessage {
        let mut link = LinkMessage::default();
        link.header.index = index;
        link.header.flags = netlink_packet_route::link::LinkFlags::from_bits_retain(flags);
        link.attributes.push(LinkAttribute::IfName(name.to_owned()));
        link
    }

    #[test]
    fn a_carrier_is_that_of_the_interface_whatever_it_is_called_and_ends_with_it() {
        let mut watched = vec![Watched::new("eth0".into()), Watched::new("eth1".into())];
        let mut say = |message| {
            note(&mut watched, &message);
            [watched[0].carries, watched[1].carries]
        };
        let new = |index, name, flags| Message::NewLink(link(index, name, flags));
        assert_eq!(say(new(2, "eth0", CARRIES)), [true, false]);
        assert_eq!(say(new(3, "eth1", 1)), [true, false], "up, without a carrier");
        assert_eq!(say(new(4, "eth2", CARRIES)), [true, false], "nobody's");
        assert_eq!(say(new(2, "wan0", 1 << 16)), [false, false], "brought down under a new name");
        assert_eq!(say(new(3, "eth1", CARRIES)), [false, true]);
        assert_eq!(say(Message::DelLink(link(3, "eth1", CARRIES))), [false, false]);
        assert_eq!(say(new(9, "eth1", CARRIES)), [false, false], "another of the name");
    }

    #[test]
    fn the_loopback_interface_is_seen_and_a_missing_one_has_no_carrier() {
        let mut links = Links::open(["lo", "no-such-if"].map(str::to_owned)).unwrap();
        assert!(links.watched[0].number.is_some() && links.watched[1].number.is_none());
        links.look().unwrap();
        links.ask().unwrap();
        assert_eq!(links.carriers().nth(1), Some(false));
        // No interface has this number.
        links.watched[1].number = Some(u32::MAX / 2);
        links.watched[1].carries = true;
        links.ask().unwrap();
        assert_eq!(links.carriers().nth(1), Some(false));
    }
}
