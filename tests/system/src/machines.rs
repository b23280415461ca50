//! Linux guests that start within a second: user-mode Linux, and QEMU where that does not run.

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

/// What guests on a fabric are booted with.
#[derive(Debug)]
pub struct Machines<'a> {
    lab: &'a Lab,
    uml: Option<UserModeLinux>,
}

impl<'a> Machines<'a> {
    /// Looks whether user-mode Linux runs here.
    pub fn new(lab: &'a Lab) -> Result<Self> {
        let uml = UserModeLinux::prepare_if_it_runs(&lab.workspace, &lab.image)?;
        if uml.is_none() {
            println!("QEMU is taken in its place");
        }
        Ok(Self { lab, uml })
    }

    /// What they are.
    pub fn kind(&self) -> &'static str {
        if self.uml.is_some() { "user-mode Linux" } else { "QEMU" }
    }

    /// Boots a guest with the address of number `number` at an interface that is in a network over hosts.
    pub fn boot(&self, weir: &Weir, index: u8, number: u8) -> Result<Guest> {
        let Some(programs) = &self.uml else {
            let (name, cidr) = (weir::name(index), address::cidr(number));
            let spec = GuestSpec { name, cidr, vcpus: 1, plug: weir.plug(index)? };
            return Guest::boot(&self.lab.image, &spec, weir.dir());
        };
        let console = weir.dir().join(format!("{}.console", weir::name(index)));
        let mut guest = programs.boot(&Wire::VhostUser(&weir.socket(index)?), &console)?;
        // Its device tells it neither its address nor the network's MTU.
        uml::set_addresses(&mut guest, number)?;
        guest.run(&format!("ip link set eth0 mtu {MTU}"), PATIENCE)?;
        Ok(guest)
    }
}
