//! Front ends without a network stack: user-space guests that answer ARP and ping, fragments included.

use weir_bed::{
    address,
    error::Result,
    process::{Placement, Process},
    weir::{self, Vif},
};

use super::{
    bed::{Bed, PARTNER, TESTED, await_running},
    linux::{FRAGMENTED_BYTES, drops, echo},
    qemu_cells::stop,
    record::{Record, Step, Verdict},
};

/// The example's argument for packed rings.
const PACKED: Option<&str> = Some("packed");

/// weir's own `vif` crate.
pub fn vif(bed: &mut Bed<'_>, record: &mut Record) -> Result<Verdict> {
    run(bed, record, "answer", None)
}

/// weir's `vif` crate with packed rings.
pub fn vif_packed(bed: &mut Bed<'_>, record: &mut Record) -> Result<Verdict> {
    run(bed, record, "answer", PACKED)
}

/// The front end of rust-vmm's `vhost` crate.
pub fn vhost_crate(bed: &mut Bed<'_>, record: &mut Record) -> Result<Verdict> {
    run(bed, record, "vhost_crate", None)
}

/// The front end of rust-vmm's `vhost` crate with packed rings.
pub fn vhost_crate_packed(bed: &mut Bed<'_>, record: &mut Record) -> Result<Verdict> {
    run(bed, record, "vhost_crate", PACKED)
}

/// Runs the example `name`. `rings` is its argument for rings that are not split.
fn run(bed: &mut Bed<'_>, record: &mut Record, name: &str, rings: Option<&str>) -> Result<Verdict> {
    let (mut weir, mut partner) = bed.set_up(&[Vif::default()])?;
    let example = bed.programs.example(name);
    let (example, socket) = (example.to_string_lossy(), weir.socket(TESTED)?);
    let (socket, mac, ip) = (socket.to_string_lossy(), address::mac(TESTED), address::ip(TESTED));
    let argv = [&[&*example, &*socket, mac.as_str(), ip.as_str()], rings.as_slice()].concat();
    let log = weir.dir().join(format!("{name}.log"));
    let mut process = Process::start_logged(&argv, &Placement::default(), &log)?;
    record.step(Step::Link, || {
        await_running(&mut weir, &[PARTNER, TESTED])?;
        Ok(rings.unwrap_or("split").to_owned())
    })?;
    record.step(Step::Ping, || echo(&mut partner, TESTED, None).map(|()| "answers".into()))?;
    let large = Some(FRAGMENTED_BYTES);
    record
        .step(Step::Fragments, || echo(&mut partner, TESTED, large).map(|()| "answers".into()))?;
    record.leave_out(Step::Tcp, "the program behind it answers ARP and ping and has no TCP");
    let before = weir.stats()?;
    record.step(Step::Reconnect, || {
        weir.crash();
        weir.launch_again()?;
        await_running(&mut weir, &[PARTNER, TESTED])?;
        echo(&mut partner, TESTED, None)?;
        echo(&mut partner, TESTED, large)?;
        Ok("by itself".into())
    })?;
    record.step(Step::Drops, || drops(&[before, weir.stats()?], &weir::name(TESTED), &[]))?;
    process.check_alive()?;
    bed.give_back(partner);
    stop(weir)
}
