//! Packets between weir and the keeper: text of a few lines, some with a descriptor.
//!
//! The words are those of sd_notify(3), which are well known, and a few more.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use weir_limits::KEPT_NAME_LEN_MAX;

/// Longest packet: the longest name, and the words around it.
const PACKET_LEN_MAX: usize = KEPT_NAME_LEN_MAX + 64;

/// One packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Word {
    /// The number of weir's process. It comes before the other words, and an old keeper knows no such word.
    Process(u32),
    /// weir runs already and has lost its keeper: a weir that starts has precedence. The word comes before [`Self::Take`],
    /// and an old keeper knows no such word.
    Return,
    /// weir has started: it wants all descriptors once no other weir runs.
    Take,
    /// weir wants to see all descriptors, even if another weir runs.
    Look,
    /// The descriptor with this packet is to be kept under this name, in place of an earlier one.
    Store(String),
    /// The descriptor under this name is to be removed.
    Remove(String),
    /// weir ends in order: all descriptors but the one under this name are to be removed. A keeper that
    /// [does not say so](Self::RemovesOthers) knows no such word.
    RemoveOthers(String),
    /// The keeper gives the descriptor with this packet.
    Given(String),
    /// The keeper knows [`Self::RemoveOthers`]. An old weir knows no such word.
    RemovesOthers,
    /// The keeper has given all descriptors.
    Ready,
    /// The keeper serves another weir, whose process has this number.
    Busy(u32),
}

impl Word {
    fn to_text(&self) -> String {
        match self {
            Self::Process(process) => format!("MAINPID={process}"),
            Self::Return => "RETURN=1".into(),
            Self::Take => "TAKE=1".into(),
            Self::Look => "LOOK=1".into(),
            Self::Store(name) => format!("FDSTORE=1\nFDNAME={name}"),
            Self::Remove(name) => format!("FDSTOREREMOVE=1\nFDNAME={name}"),
            Self::RemoveOthers(name) => format!("FDSTOREREMOVEOTHERS=1\nFDNAME={name}"),
            Self::Given(name) => format!("FDNAME={name}"),
            Self::RemovesOthers => "FDSTOREREMOVEOTHERS=1".into(),
            Self::Ready => "READY=1".into(),
            Self::Busy(process) => format!("BUSY=1\nMAINPID={process}"),
        }
    }

    fn from_text(text: &str) -> Option<Self> {
        let name = |name: &str| is_name(name).then(|| name.to_owned());
        if let Some(rest) = text.strip_prefix("FDSTORE=1\nFDNAME=") {
            return name(rest).map(Self::Store);
        }
        if let Some(rest) = text.strip_prefix("FDSTOREREMOVE=1\nFDNAME=") {
            return name(rest).map(Self::Remove);
        }
        if let Some(rest) = text.strip_prefix("FDSTOREREMOVEOTHERS=1\nFDNAME=") {
            return name(rest).map(Self::RemoveOthers);
        }
        if let Some(process) = text.strip_prefix("MAINPID=") {
            return process.parse().ok().map(Self::Process);
        }
        if let Some(process) = text.strip_prefix("BUSY=1\nMAINPID=") {
            return process.parse().ok().map(Self::Busy);
        }
        match text {
            "RETURN=1" => Some(Self::Return),
            "TAKE=1" => Some(Self::Take),
            "LOOK=1" => Some(Self::Look),
            "FDSTOREREMOVEOTHERS=1" => Some(Self::RemovesOthers),
            "READY=1" => Some(Self::Ready),
            given => name(given.strip_prefix("FDNAME=")?).map(Self::Given),
        }
    }
}

/// True for names that systemd accepts for descriptors: printable ASCII without a colon.
pub(crate) fn is_name(name: &str) -> bool {
    let letters = name.bytes().all(|letter| (b' '..127).contains(&letter) && letter != b':');
    !name.is_empty() && name.len() <= KEPT_NAME_LEN_MAX && letters
}

/// Sends one packet, without waiting.
pub(crate) fn send(
    socket: impl AsFd,
    word: &Word,
    descriptor: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let text = word.to_text();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let lent = descriptor.as_slice();
    if !lent.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(lent));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    retry_on_intr(|| sendmsg(&socket, &[IoSlice::new(text.as_bytes())], &mut control, flags))?;
    Ok(())
}

/// The result of a read.
#[derive(Debug)]
pub(crate) enum Received {
    /// A packet.
    Word(Word, Option<OwnedFd>),
    /// A packet that is no known word.
    Unknown,
    /// No packet has come yet.
    Nothing,
    /// The other side has ended.
    End,
}

/// Takes one packet, without waiting. Descriptors beyond one are closed.
pub(crate) fn receive(socket: impl AsFd) -> io::Result<Received> {
    let mut bytes = [0; PACKET_LEN_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let mut receive = || {
        let mut parts = [IoSliceMut::new(&mut bytes)];
        recvmsg(&socket, &mut parts, &mut control, flags)
    };
    let received = match retry_on_intr(&mut receive) {
        // The other side has ended with a packet of ours unread. The kernel reports this once, and before the other
        // side's packets.
        Err(Errno::CONNRESET) => retry_on_intr(&mut receive),
        received => received,
    };
    let received = match received {
        Ok(received) => received,
        Err(Errno::AGAIN) => return Ok(Received::Nothing),
        Err(Errno::CONNRESET | Errno::PIPE) => return Ok(Received::End),
        Err(errno) => return Err(errno.into()),
    };
    let mut descriptor = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            descriptor = descriptors.last();
        }
    }
    if received.bytes == 0 {
        return Ok(Received::End);
    }
    let whole = !received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
    let text = bytes.get(..received.bytes).and_then(|text| std::str::from_utf8(text).ok());
    let word = text.filter(|_| whole).and_then(Word::from_text);
    Ok(word.map_or(Received::Unknown, |word| Received::Word(word, descriptor)))
}
