//! The bed of a cell: a switch of its own and a partner. One partner guest serves many cells: its QEMU reconnects to
//! each new switch by itself.

use std::{fs, path::PathBuf, time::Duration};

use weir_bed::{
    address,
    error::Result,
    iperf,
    lab::Lab,
    qemu::{Guest, GuestSpec},
    switch::Switch,
    weir::{self, Setup, Vif, Weir},
    workspace::Programs,
};

use super::parts::Parts;

/// The partner's interface.
pub const PARTNER: u8 = 0;
/// The interface of the front end under test.
pub const TESTED: u8 = 1;
/// The second interface of a front end that has two.
pub const SECOND: u8 = 2;

/// Longest time until a front end is connected again. QEMU tries once a second.
pub const RETURN_PATIENCE: Duration = Duration::from_secs(20);

/// The bed in which cells are tried.
pub struct Bed<'a> {
    /// The installed QEMU, the guests' image and weir.
    pub lab: &'a Lab,
    /// Front ends that are unpacked, not installed.
    pub parts: Parts,
    /// User-space guests.
    pub programs: Programs,
    dir: PathBuf,
    /// Number of cells begun.
    cells: u32,
    /// `None` before the first cell, and after a cell that failed.
    partner: Option<Guest>,
}

impl<'a> Bed<'a> {
    /// A bed without a partner.
    pub fn new(lab: &'a Lab, parts: Parts, programs: Programs) -> Result<Self> {
        let dir = lab.workspace.run_dir("frontends")?;
        Ok(Self { lab, parts, programs, dir, cells: 0, partner: None })
    }

    /// Starts a switch with the partner's interface and those of `tested`, and boots the partner if there is none.
    ///
    /// The caller returns the partner with [`Bed::give_back`].
    pub fn set_up(&mut self, tested: &[Vif]) -> Result<(Weir, Guest)> {
        let vifs = [&[Vif::default()], tested].concat();
        // The log holds this cell's messages only. The logs of earlier cells are kept.
        self.cells += 1;
        let kept = self.dir.join(format!("weir.{}.log", self.cells));
        let _ = fs::rename(self.dir.join("weir.log"), kept);
        // Front ends that listened and cells that failed leave their socket files. A server cannot bind where a file
        // exists.
        for index in [TESTED, SECOND] {
            let _ = fs::remove_file(weir::socket_in(&self.dir, index)?);
        }
        let mut weir =
            Weir::start_in(self.dir.clone(), self.lab, &Setup { vifs, ..Setup::default() })?;
        let partner = match self.partner.take() {
            Some(partner) => partner,
            None => self.boot_partner(&weir)?,
        };
        await_running(&mut weir, &[PARTNER])?;
        Ok((weir, partner))
    }

    /// Returns the partner for the next cell.
    pub fn give_back(&mut self, partner: Guest) {
        self.partner = Some(partner);
    }

    fn boot_partner(&self, weir: &Weir) -> Result<Guest> {
        let (name, plug) = (String::from("partner"), weir.plug(PARTNER)?);
        let spec = GuestSpec { name, cidr: address::cidr(PARTNER), vcpus: 1, plug };
        let mut partner = Guest::boot(&self.lab.image, &spec, weir.dir())?;
        iperf::serve(&mut partner, iperf::PORT)?;
        Ok(partner)
    }
}

/// Waits until packets can flow at each of the interfaces `indices`.
pub fn await_running(weir: &mut Weir, indices: &[u8]) -> Result<()> {
    let what = format!("interfaces {indices:?} to run");
    weir.await_stats(&what, RETURN_PATIENCE, |stats| {
        indices.iter().all(|&index| stats.state(&weir::name(index)).is_ok_and(|it| it == "running"))
    })
}
