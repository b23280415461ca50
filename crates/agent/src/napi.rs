//! Settings of single NAPI instances, which Linux has beside those of their interface from 6.13 on, by generic netlink
//! (`linux/netdev.h`, the kernel's Documentation/netlink/specs/netdev.yaml).
//!
//! A write to the interface's files in `/sys` sets all of its NAPI instances. So whoever changes an interface for a
//! while reads the instances that differ from it before, and sets these again in the end.
//!
//! [`Generic`] is the connection to a family of generic netlink, for weir's `ethtool` as well.

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};
use serde::{Deserialize, Serialize};
use weir_limits::AGENT_NAPIS_MAX;

/// The ends of an answer (`linux/netlink.h`).
const ERROR: u16 = 2;
/// See [`ERROR`].
const DONE: u16 = 3;
const REQUEST_AND_ACK: u16 = 1 | 4;
const REQUEST_AND_DUMP: u16 = 1 | 0x300;
const HEADER_LEN: usize = 16;
/// The length of the generic header: command, version and two reserved bytes.
const GENERIC_HEADER_LEN: usize = 4;
/// The bits of an attribute's kind that are no flags.
const KIND: u16 = 0x3fff;
/// The longest part of an answer that the kernel gives at once.
const ANSWER_LEN: usize = 32 << 10;

/// The family that resolves the names of other families, and its request (`linux/genetlink.h`).
const CONTROLLER: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;

/// `linux/netdev.h`.
const FAMILY: &str = "netdev";
const NAPI_GET: u8 = 11;
const NAPI_SET: u8 = 14;
const IFINDEX: u16 = 1;
const ID: u16 = 2;
const DEFER_HARD_IRQS: u16 = 5;
const GRO_FLUSH_TIMEOUT: u16 = 6;

/// Settings of one NAPI instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Napi {
    /// The instance's number in its network namespace.
    pub id: u32,
    /// Empty polls before interrupts are turned on again.
    pub napi_defer_hard_irqs: u64,
    /// The poll interval until then (ns).
    pub gro_flush_timeout: u64,
}

impl Napi {
    /// The instances of an interface whose settings differ from those of the interface, at most [`AGENT_NAPIS_MAX`]. A
    /// kernel without settings of single instances has none.
    #[must_use]
    pub fn set_alone(ifindex: u32, polls: u64, timeout_ns: u64) -> Vec<Self> {
        let all = Generic::open(FAMILY).and_then(|netdev| netdev.napis(ifindex));
        let differs = |napi: &Self| {
            (napi.napi_defer_hard_irqs, napi.gro_flush_timeout) != (polls, timeout_ns)
        };
        all.unwrap_or_default().into_iter().filter(differs).take(AGENT_NAPIS_MAX).collect()
    }

    /// Restores the settings of instances that were read before. An instance that was removed has taken its settings
    /// with it.
    ///
    /// # Errors
    /// The kernel's error for one of them; the others are set.
    pub fn restore(all: &[Self]) -> io::Result<()> {
        if all.is_empty() {
            return Ok(());
        }
        let netdev = Generic::open(FAMILY)?;
        let mut result = Ok(());
        for napi in all {
            match netdev.set(napi) {
                Err(error) if error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => {}
                set => result = result.and(set),
            }
        }
        result
    }
}

/// A connection to one family of the kernel's generic netlink. The kernel answers during the send, so no caller waits.
#[derive(Debug)]
pub struct Generic {
    fd: OwnedFd,
    family: u16,
}

impl Generic {
    /// Connects to the family of this name.
    ///
    /// # Errors
    /// `ENOENT`: the kernel has no such family.
    pub fn open(family: &str) -> io::Result<Self> {
        let (kind, flags) = (SocketType::RAW, SocketFlags::CLOEXEC);
        let fd = socket_with(AddressFamily::NETLINK, kind, flags, Some(netlink::GENERIC))?;
        let mut generic = Self { fd, family: CONTROLLER };
        let name = [family.as_bytes(), b"\0"].concat();
        let mut id = None;
        generic.ask(GET_FAMILY, &[(FAMILY_NAME, &name)], |answer| {
            id = attribute(answer, FAMILY_ID).and_then(|it| it.try_into().ok());
        })?;
        generic.family = id.map(u16::from_ne_bytes).ok_or(Errno::NOENT)?;
        Ok(generic)
    }

    /// Sends a request, and gives the [attributes](attribute) of the answer to `each`, unless the kernel only
    /// acknowledges.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn ask(
        &self,
        command: u8,
        attributes: &[(u16, &[u8])],
        each: impl FnMut(&[u8]),
    ) -> io::Result<()> {
        self.send(REQUEST_AND_ACK, command, attributes, each)
    }

    fn napis(&self, ifindex: u32) -> io::Result<Vec<Napi>> {
        let mut all = Vec::new();
        let wanted = [(IFINDEX, &ifindex.to_ne_bytes()[..])];
        self.send(REQUEST_AND_DUMP, NAPI_GET, &wanted, |answer| all.extend(napi(answer)))?;
        Ok(all)
    }

    fn set(&self, napi: &Napi) -> io::Result<()> {
        let polls = u32::try_from(napi.napi_defer_hard_irqs).map_err(io::Error::other)?;
        let attributes = [
            (ID, &napi.id.to_ne_bytes()[..]),
            (DEFER_HARD_IRQS, &polls.to_ne_bytes()),
            (GRO_FLUSH_TIMEOUT, &napi.gro_flush_timeout.to_ne_bytes()),
        ];
        self.ask(NAPI_SET, &attributes, |_| ())
    }

    fn send(
        &self,
        flags: u16,
        command: u8,
        attributes: &[(u16, &[u8])],
        mut each: impl FnMut(&[u8]),
    ) -> io::Result<()> {
        send(&self.fd, &request(self.family, flags, command, attributes), SendFlags::empty())?;
        let mut buffer = vec![0; ANSWER_LEN];
        loop {
            let (len, _) = recv(&self.fd, buffer.as_mut_slice(), RecvFlags::DONTWAIT)?;
            let mut rest = buffer.get(..len).unwrap_or_default();
            while let Some((kind, body, next)) = message(rest) {
                rest = next;
                if kind == ERROR || kind == DONE {
                    let code = body.first_chunk().map_or(0, |code| i32::from_ne_bytes(*code));
                    return match code {
                        0 => Ok(()),
                        code => Err(io::Error::from_raw_os_error(code.saturating_neg())),
                    };
                }
                each(body.get(GENERIC_HEADER_LEN..).unwrap_or_default());
            }
        }
    }
}

fn request(family: u16, flags: u16, command: u8, attributes: &[(u16, &[u8])]) -> Vec<u8> {
    let mut bytes = vec![0; HEADER_LEN];
    bytes.extend([command, 1, 0, 0]);
    bytes.extend(bytes_of(attributes));
    let len = (bytes.len() as u32).to_ne_bytes();
    bytes[..4].copy_from_slice(&len);
    bytes[4..8].copy_from_slice(&[family.to_ne_bytes(), flags.to_ne_bytes()].concat());
    bytes
}

/// The bytes of attributes, each with its kind and its value.
#[must_use]
pub fn bytes_of(attributes: &[(u16, &[u8])]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (kind, value) in attributes {
        // Names and numbers are short.
        let len = (value.len() + 4) as u16;
        bytes.extend([len.to_ne_bytes(), kind.to_ne_bytes()].concat());
        bytes.extend_from_slice(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    }
    bytes
}

fn number_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The kind and the body of the first message, and the bytes behind it.
fn message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let len = u32::from_ne_bytes(*bytes.first_chunk()?) as usize;
    let body = bytes.get(HEADER_LEN..len)?;
    let next = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
    Some((number_at(bytes, 4)?, body, next))
}

/// The value of the first attribute of this kind.
#[must_use]
pub fn attribute(mut bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let (len, kind) = (number_at(bytes, 0)?, number_at(bytes, 2)?);
        let value = bytes.get(4..len.into())?;
        if kind & KIND == wanted {
            return Some(value);
        }
        bytes = bytes.get(usize::from(len).next_multiple_of(4)..)?;
    }
}

/// The kernel writes a number with four bytes if they suffice, otherwise with eight.
fn number(value: &[u8]) -> Option<u64> {
    match value.len() {
        4 => Some(u32::from_ne_bytes(value.try_into().ok()?).into()),
        8 => Some(u64::from_ne_bytes(value.try_into().ok()?)),
        _ => None,
    }
}

/// An instance in an answer; `None` if the kernel does not give its settings.
fn napi(answer: &[u8]) -> Option<Napi> {
    let get = |wanted| attribute(answer, wanted).and_then(number);
    Some(Napi {
        id: get(ID)?.try_into().ok()?,
        napi_defer_hard_irqs: get(DEFER_HARD_IRQS)?,
        gro_flush_timeout: get(GRO_FLUSH_TIMEOUT)?,
    })
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::io::Read as _;
    use std::os::fd::AsFd as _;
    use std::process::{Command, Stdio};

    use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
    use weir_testing::Running;

    use super::*;
    use crate::deferral::Deferral;
    use crate::fake_guest::FakeGuest;
    use crate::guest::Guest;
    use crate::state::StateFile;

    #[test]
    fn an_answer_is_read_whatever_its_lengths_say() {
        let id = 7_u32.to_ne_bytes();
        let (polls, timeout) = (2_u32.to_ne_bytes(), 5_000_000_000_u64.to_ne_bytes());
        let all = [
            (IFINDEX, &id[..]),
            (ID, &id),
            (DEFER_HARD_IRQS, &polls),
            (GRO_FLUSH_TIMEOUT, &timeout),
        ];
        let bytes = request(20, REQUEST_AND_DUMP, NAPI_GET, &all);
        let (kind, body, next) = message(&bytes).unwrap();
        assert_eq!((kind, next), (20, &[][..]));
        let found = napi(&body[GENERIC_HEADER_LEN..]).unwrap();
        let wanted = Napi { id: 7, napi_defer_hard_irqs: 2, gro_flush_timeout: 5_000_000_000 };
        assert_eq!(found, wanted);
        for len in 0..bytes.len() {
            assert!(message(&bytes[..len]).is_none(), "{len}");
        }
        for len in 0..body.len() - GENERIC_HEADER_LEN {
            assert!(napi(&body[GENERIC_HEADER_LEN..][..len]).is_none(), "{len}");
        }
        for len in [0_u16, 3, 0xffff] {
            let bytes = [&len.to_ne_bytes()[..], &[ID as u8; 14]].concat();
            assert_eq!(attribute(&bytes, 77), None, "{len}");
        }
    }

    /// The first message of ethtool 6.1 as strace shows it.
    #[test]
    #[cfg(target_endian = "little")]
    fn a_family_is_asked_for_as_by_the_ethtool_program() {
        let asked =
            request(CONTROLLER, REQUEST_AND_ACK, GET_FAMILY, &[(FAMILY_NAME, b"ethtool\0")]);
        let bytes = b"\x20\x00\x00\x00\x10\x00\x05\x00\0\0\0\0\0\0\0\0\x03\x01\x00\x00\x0c\x00\x02\x00ethtool\x00";
        assert_eq!(asked, bytes);
    }

    #[test]
    fn an_interface_that_is_not_there_has_none() {
        assert!(Napi::set_alone(u32::MAX / 2, 0, 0).is_empty());
        Napi::restore(&[]).unwrap();
    }

    #[test]
    fn root_an_instance_that_was_set_alone_gets_its_settings_back_from_the_kernel() {
        if !weir_testing::is_root("a veth pair") || !weir_testing::has("ethtool", "ethtool") {
            return;
        }
        let mut unshare = Command::new("unshare");
        let script = "mount -t sysfs sys /sys; echo; exec sleep 600";
        unshare.args(["--net", "--mount", "sh", "-c", script]).stdout(Stdio::piped());
        let mut network = Running(unshare.spawn().unwrap());
        network.0.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let of_network = format!("/proc/{}", network.0.id());
        std::thread::spawn(move || {
            let file = File::open(format!("{of_network}/ns/net")).unwrap();
            let kind = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(file.as_fd(), kind).unwrap();
            weir_testing::veth(2);
            weir_testing::ip("link set dev weir0 up");
            // A veth has NAPI instances while it merges frames.
            let merge = Command::new("ethtool").args(["-K", "weir0", "gro", "on"]).status();
            assert!(merge.unwrap().success());
            let dir = format!("{of_network}/root/sys/class/net/weir0");
            let index = fs::read_to_string(format!("{dir}/ifindex")).unwrap();
            let index = index.trim().parse().unwrap();
            let set_all = |polls: u64, timeout_ns: u64| {
                fs::write(format!("{dir}/napi_defer_hard_irqs"), polls.to_string()).unwrap();
                fs::write(format!("{dir}/gro_flush_timeout"), timeout_ns.to_string()).unwrap();
            };
            set_all(0, 0);
            let all = Napi::set_alone(index, u64::MAX, 0);
            let Some(first) = all.first() else {
                return weir_testing::skipped("this kernel has no settings of single instances");
            };
            assert_eq!(all.len(), 2);
            assert_eq!(Napi::set_alone(index, 0, 0), []);

            let own = Napi { napi_defer_hard_irqs: 7, gro_flush_timeout: 30_000, ..*first };
            Generic::open(FAMILY).unwrap().set(&own).unwrap();
            let found = Napi::set_alone(index, 0, 0);
            assert_eq!(found, [own]);
            // What the agent does for a while, and its end. Its writes to the interface's files are made here.
            let guest = FakeGuest::new();
            let files = ["napi_defer_hard_irqs", "gro_flush_timeout", "ifindex"];
            for (file, number) in files.into_iter().zip([0, 0, index]) {
                guest.write(&format!("sys/class/net/eth0/{file}"), &number.to_string());
            }
            let state = StateFile::lock(&guest.path("agent.state")).unwrap();
            let mac = "52:54:00:00:00:01".parse().unwrap();
            let mut deferral = Deferral::recover(Guest::new(guest.root()), state).unwrap();
            deferral.apply(mac, Some(50_000)).unwrap();
            set_all(3, 50_000);
            assert_eq!(Napi::set_alone(index, 3, 50_000), []);
            set_all(0, 0);
            deferral.restore_all().unwrap();
            assert_eq!(Napi::set_alone(index, 0, 0), [own]);
            // An instance that is gone keeps no other one from its settings.
            set_all(0, 0);
            let gone = Napi { id: u32::MAX / 2, ..own };
            Napi::restore(&[gone, own]).unwrap();
            assert_eq!(Napi::set_alone(index, 0, 0), [own]);
        })
        .join()
        .unwrap();
    }
}
