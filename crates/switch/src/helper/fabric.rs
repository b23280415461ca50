//! Announcements to FRR, and the devices that FRR watches.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use weir_evpn::{Herald, How, Objects};
use weir_wire::Mac;

use super::wire::{Announcement, FrrDaemon, OwnerAnnouncement};

/// Time for a TAP to close: at most this many turns.
const CLOSING_TURNS: u32 = 15;
const CLOSING_TURN: Duration = Duration::from_millis(20);

/// Announces addresses of these networks, given by their VNIs, and of no others.
#[derive(Debug, Default)]
pub(crate) struct Fabric {
    vnis: BTreeSet<u32>,
    open: Option<(Objects, Herald)>,
    /// Interface indices of the networks' TAPs and bridges, by VNI.
    taps: BTreeMap<u32, u32>,
    bridges: BTreeMap<u32, u32>,
}

impl Fabric {
    pub(super) fn of(vnis: BTreeSet<u32>) -> Self {
        Self { vnis, ..Self::default() }
    }

    /// Announces all addresses. The error is that of the first failure; the others are announced nevertheless.
    pub(super) fn announce(&mut self, all: &[Announcement]) -> Result<(), Errno> {
        let mut told = Ok(());
        for one in all {
            if let Err(errno) = self.announce_one(*one) {
                // The TAP may have been removed and created again.
                self.taps.remove(&one.vni);
                told = told.and(Err(errno));
            }
        }
        told
    }

    fn announce_one(&mut self, one: Announcement) -> Result<(), Errno> {
        let Announcement { vni, mac, sticky } = one;
        if !self.vnis.contains(&vni) {
            return Err(Errno::PERM);
        }
        let (objects, herald) = open(&mut self.open)?;
        let tap = match self.taps.get(&vni) {
            Some(tap) => *tap,
            None => {
                let tap = objects.tap(vni).map_err(|error| errno(&error))?.ok_or(Errno::NODEV)?;
                self.taps.insert(vni, tap);
                tap
            }
        };
        let how = sticky.map(|sticky| if sticky { How::Sticky } else { How::Plain });
        herald.tell(tap, Mac(mac), how).map_err(|error| errno(&error))
    }

    /// Announces the owners of IP addresses. The error is that of the first failure; the others are announced
    /// nevertheless.
    pub(super) fn announce_owners(&mut self, all: &[OwnerAnnouncement]) -> Result<(), Errno> {
        let mut told = Ok(());
        for one in all {
            if let Err(errno) = self.announce_owner(*one) {
                self.bridges.remove(&one.vni);
                told = told.and(Err(errno));
            }
        }
        told
    }

    fn announce_owner(&mut self, one: OwnerAnnouncement) -> Result<(), Errno> {
        let OwnerAnnouncement { vni, ip, mac } = one;
        if !self.vnis.contains(&vni) {
            return Err(Errno::PERM);
        }
        let (objects, herald) = open(&mut self.open)?;
        let bridge = match self.bridges.get(&vni) {
            Some(bridge) => *bridge,
            None => {
                let bridge = objects.bridge(vni).map_err(|error| errno(&error))?;
                let bridge = bridge.ok_or(Errno::NODEV)?;
                self.bridges.insert(vni, bridge);
                bridge
            }
        };
        herald.tell_owner(bridge, ip, mac.map(Mac)).map_err(|error| errno(&error))
    }

    /// Connects to one of FRR's daemons.
    pub(super) fn connect(&self, daemon: FrrDaemon) -> io::Result<OwnedFd> {
        if self.vnis.is_empty() {
            return Err(Errno::PERM.into());
        }
        connect_to(daemon)
    }

    /// Removes VNIs and adds them again, for a zebra that has no entries of other hosts. The error is that of the
    /// first failure.
    pub(super) fn renew(&mut self) -> Result<(), Errno> {
        let (objects, _) = open(&mut self.open)?;
        let mut renewed = Ok(());
        for vni in &self.vnis {
            renewed = renewed.and(objects.renew(*vni).map_err(|error| errno(&error)));
        }
        renewed
    }

    /// Removes devices whose TAP no weir has open.
    pub(super) fn leave(&mut self) {
        if self.vnis.is_empty() {
            return;
        }
        let Ok((objects, _)) = open(&mut self.open) else { return };
        let mut left: Vec<_> = self.vnis.iter().copied().collect();
        // The keeper closes a released descriptor with a short delay, or the next weir has the TAP open.
        for _ in 0..CLOSING_TURNS {
            left.retain(|vni| !objects.remove_left_over(*vni));
            if left.is_empty() {
                return;
            }
            std::thread::sleep(CLOSING_TURN);
        }
    }
}

/// Connects to one of FRR's daemons.
pub(crate) fn connect_to(daemon: FrrDaemon) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(daemon.path())?)?;
    Ok(socket)
}

fn open(open: &mut Option<(Objects, Herald)>) -> Result<&mut (Objects, Herald), Errno> {
    if open.is_none() {
        // The process has too few descriptors or too little memory.
        let opened = Objects::open().and_then(|objects| Ok((objects, Herald::open()?)));
        *open = Some(opened.map_err(|_| Errno::NFILE)?);
    }
    open.as_mut().ok_or(Errno::NFILE)
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}
