//! Zebra's entries in the kernel: the host behind which each station is, and the hosts that are members of a network.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_packet_route::AddressFamily;
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourHeader, NeighbourMessage,
    NeighbourState,
};
use rustix::io::Errno;
use weir_limits::EVPN_SOCKET_BUFFER_LEN;
use weir_wire::{Mac, Owner};

use crate::announce::Owned;
use crate::error::EvpnError;
use crate::links::{Message, Socket};
use crate::objects::Devices;
use crate::table::{Noted, Table};

/// `RTMGRP_NEIGH` of `linux/rtnetlink.h`: entries of bridges and of VXLAN devices, and neighbours.
const GROUP_NEIGHBOURS: u32 = 4;

/// Reads the entries. Reading needs no privilege.
#[derive(Debug)]
pub struct Watch {
    changes: Socket,
    questions: Socket,
    /// The network of each device, by the device's number.
    devices: BTreeMap<u32, (u16, Device)>,
    /// Changes were lost, or could not be taken.
    behind: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Device {
    Bridge,
    Vxlan,
    Tap,
}

impl Watch {
    /// Watches the devices of these networks, by the networks' numbers in the switch.
    ///
    /// # Errors
    /// [`EvpnError`]
    pub fn open(networks: impl IntoIterator<Item = (u16, Devices)>) -> Result<Self, EvpnError> {
        let changes = Socket::open(GROUP_NEIGHBOURS).map_err(EvpnError::Socket)?;
        changes.make_room(EVPN_SOCKET_BUFFER_LEN);
        let questions = Socket::open(0).map_err(EvpnError::Socket)?;
        let devices = networks.into_iter().flat_map(|(number, Devices { bridge, vxlan, tap })| {
            let devices = [(bridge, Device::Bridge), (vxlan, Device::Vxlan), (tap, Device::Tap)];
            devices.map(|(index, device)| (index, (number, device)))
        });
        // Entries that were made before are yet to be read.
        Ok(Self { changes, questions, devices: devices.collect(), behind: true })
    }

    /// Takes up to `most` changes into `table`; `true` if there may be more. If changes were lost, everything is read
    /// again.
    ///
    /// # Errors
    /// [`EvpnError::Read`]
    pub fn read(&mut self, most: usize, table: &mut Table) -> Result<bool, EvpnError> {
        let devices = &self.devices;
        let mut take = |message| {
            if let Some(noted) = noted(message, devices) {
                table.take(&noted);
            }
        };
        match self.changes.changes(most, &mut take) {
            Ok(more) if !self.behind && !table.wants_all() => return Ok(more),
            Ok(more) if more => return Ok(more),
            Ok(_) => {}
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NOBUFS) => {
                self.behind = true;
                return Ok(true);
            }
            Err(error) => return Err(EvpnError::Read(error)),
        }
        self.read_all(table).map_err(EvpnError::Read)?;
        self.behind = false;
        // Changes may have come meanwhile.
        Ok(true)
    }

    fn read_all(&mut self, table: &mut Table) -> io::Result<()> {
        table.begin_all();
        let devices = &self.devices;
        for family in [AddressFamily::Bridge, AddressFamily::Inet, AddressFamily::Inet6] {
            let mut question = NeighbourMessage::default();
            question.header.family = family;
            self.questions.dump(Message::GetNeighbour(question), |message| {
                if let Some(noted) = noted(message, devices) {
                    table.take(&noted);
                }
            })?;
        }
        table.end_all();
        Ok(())
    }
}

impl AsFd for Watch {
    /// The descriptor is readable when there are changes.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.changes.as_fd()
    }
}

/// The content of a message, if it is about a network of weir's.
fn noted(message: Message, devices: &BTreeMap<u32, (u16, Device)>) -> Option<Noted> {
    let (entry, is_there) = match message {
        Message::NewNeighbour(entry) => (entry, true),
        Message::DelNeighbour(entry) => (entry, false),
        _ => return None,
    };
    let NeighbourMessage { header, attributes, .. } = entry;
    let (network, device) = *devices.get(&header.ifindex)?;
    if (header.family == AddressFamily::Bridge) == (device == Device::Bridge) {
        return None;
    }
    let (mut mac, mut host) = (None, None);
    for attribute in attributes {
        match attribute {
            NeighbourAttribute::LinkLayerAddress(bytes) => {
                mac = bytes.try_into().ok().map(Mac);
            }
            NeighbourAttribute::Destination(address) => host = ip(&address),
            _ => {}
        }
    }
    if device == Device::Bridge {
        return Some(owned((network, host?), mac.filter(|_| is_there), &header));
    }
    let mac = mac?;
    let sticky = header.flags.contains(NeighbourFlags::Sticky);
    match (device, header.flags.contains(NeighbourFlags::Own)) {
        (Device::Vxlan, true) if mac == Mac([0; 6]) => {
            Some(Noted::Member { network, host: host?, is_there })
        }
        (Device::Vxlan, true) => {
            Some(Noted::Host { network, mac, host: host.filter(|_| is_there) })
        }
        // The address is a device's own.
        (_, false) if header.state == NeighbourState::Permanent => None,
        (Device::Vxlan, false) => Some(Noted::Away { network, mac, sticky, is_there }),
        (Device::Tap | Device::Bridge, true) | (Device::Bridge, false) => None,
        (Device::Tap, false) => Some(Noted::Here { network, mac, is_there }),
    }
}

/// The content of a neighbour's entry behind a network's bridge, for an IP address.
fn owned(of: Owned, mac: Option<Mac>, header: &NeighbourHeader) -> Noted {
    let is_valid = matches!(
        header.state,
        NeighbourState::Permanent
            | NeighbourState::Noarp
            | NeighbourState::Reachable
            | NeighbourState::Stale
            | NeighbourState::Delay
            | NeighbourState::Probe
    );
    match mac.filter(|_| is_valid) {
        Some(mac) if header.flags.contains(NeighbourFlags::ExtLearned) => {
            let is_router = header.flags.contains(NeighbourFlags::Router);
            Noted::Owner { of, owner: Owner { mac, is_router } }
        }
        Some(mac) => Noted::OwnerHere { of, mac },
        None => Noted::NoOwner { of },
    }
}

fn ip(address: &NeighbourAddress) -> Option<IpAddr> {
    match address {
        NeighbourAddress::Inet(ip) => Some((*ip).into()),
        NeighbourAddress::Inet6(ip) => Some((*ip).into()),
        NeighbourAddress::Other(bytes) => {
            let v4 = || <[u8; 4]>::try_from(bytes.as_slice()).ok().map(IpAddr::from);
            v4().or_else(|| <[u8; 16]>::try_from(bytes.as_slice()).ok().map(IpAddr::from))
        }
        _ => None,
    }
}
