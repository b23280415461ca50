//! Linux guests that boot within a second: user-mode Linux, or QEMU where that does not run.

use std::time::Duration;

use weir_bed::{
    address,
    error::Result,
    fabric::MTU,
    lab::Lab,
    qemu::{Guest, GuestSpec},
    switch::Switch,
    uml::{self, UserModeLinux, Wire},
    weir::{self, Weir},
};

const PATIENCE: Duration = Duration::from_secs(20);

/// The programs that boot guests on a fabric.
#[derive(Debug)]
pub struct Machines<'a> {
    lab: &'a Lab,
    uml: Option<UserModeLinux>,
}

impl<'a> Machines<'a> {
    /// Finds out if user-mode Linux runs on this machine.
    pub fn new(lab: &'a Lab) -> Result<Self> {
        let uml = UserModeLinux::prepare_if_it_runs(&lab.workspace, &lab.image)?;
        if uml.is_none() {
            println!("QEMU is taken in its place");
        }
        Ok(Self { lab, uml })
    }

    /// The kind of guests.
    pub fn kind(&self) -> &'static str {
        if self.uml.is_some() { "user-mode Linux" } else { "QEMU" }
    }

    /// Boots guest number `number` at interface `index`, which is in a network that spans hosts.
    pub fn boot(&self, weir: &Weir, index: u8, number: u8) -> Result<Guest> {
        let Some(programs) = &self.uml else {
            let (name, cidr) = (weir::name(index), address::cidr(number));
            let spec = GuestSpec { name, cidr, vcpus: 1, plug: weir.plug(index)? };
            return Guest::boot(&self.lab.image, &spec, weir.dir());
        };
        let console = weir.dir().join(format!("{}.console", weir::name(index)));
        let mut guest = programs.boot(&Wire::VhostUser(&weir.socket(index)?), &console)?;
        // The device gives the guest neither its address nor the network's MTU.
        uml::set_addresses(&mut guest, number)?;
        guest.run(&format!("ip link set eth0 mtu {MTU}"), PATIENCE)?;
        Ok(guest)
    }
}
