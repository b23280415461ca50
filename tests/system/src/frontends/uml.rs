//! User-mode Linux: a Linux kernel as a program, with its own vhost-user driver.

use weir_bed::{
    error::{Error, Result, check},
    qemu::Guest,
    uml::{self, UserModeLinux, Wire},
    weir::{self, Vif, Weir},
};

use super::{
    bed::{Bed, RETURN_PATIENCE, TESTED},
    linux::{Expected, Feature, Return, Streams, try_out},
    qemu_cells::stop,
    record::{Record, Verdict},
};

const PACKED: Feature = Feature { bit: 34, name: "packed" };

/// User-mode Linux accepts packed rings wherever they are offered, and has no option against them.
const EXPECTED: Expected =
    Expected { queues: 1, present: &[PACKED], absent: &[], streams: Streams::Rate };

/// The cell with one queue pair.
pub fn works(bed: &mut Bed<'_>, record: &mut Record) -> Result<Verdict> {
    tried_out(prepare(bed, record), &EXPECTED, bed, record)
}

/// The user-mode Linux of Debian 13.
pub fn of_13(bed: &mut Bed<'_>, record: &mut Record) -> Result<Verdict> {
    tried_out(of_suite("trixie", bed, record), &EXPECTED, bed, record)
}

/// The user-mode Linux of Debian sid, which accepts `IN_ORDER`, too.
pub fn of_sid(bed: &mut Bed<'_>, record: &mut Record) -> Result<Verdict> {
    let present = &[PACKED, Feature { bit: 35, name: "in_order" }];
    let expected = Expected { present, ..EXPECTED };
    tried_out(of_suite("sid", bed, record), &expected, bed, record)
}

/// The programs, or the reason for their absence.
type Found = std::result::Result<UserModeLinux, String>;

fn tried_out(
    found: Found,
    expected: &Expected,
    bed: &mut Bed<'_>,
    record: &mut Record,
) -> Result<Verdict> {
    let programs = match found {
        Ok(programs) => programs,
        Err(why) => return Ok(Verdict::Skipped(why)),
    };
    let (mut weir, mut partner) = bed.set_up(&[Vif::default()])?;
    let mut start = |weir: &Weir| start(&programs, weir);
    let guest = start(&weir)?;
    let returns = Return::StartedAgain(&mut start);
    try_out(&mut weir, &mut partner, guest, expected, returns, record)?;
    bed.give_back(partner);
    stop(weir)
}

/// The cell with two queue pairs. It is refused: user-mode Linux would leave its control queue to the back end.
pub fn is_refused_with_two_queues(bed: &mut Bed<'_>, record: &mut Record) -> Result<Verdict> {
    let programs = match prepare(bed, record) {
        Ok(programs) => programs,
        Err(why) => return Ok(Verdict::Skipped(why)),
    };
    let (mut weir, partner) = bed.set_up(&[Vif { queues: Some(2), ..Vif::default() }])?;
    let guest = boot(&programs, &weir)?;
    let tested = weir::name(TESTED);
    weir.await_stats("the session to be refused", RETURN_PATIENCE, |stats| {
        stats.last_error(&tested).is_ok_and(|error| error.is_some())
    })?;
    drop(guest);
    let log = weir.log();
    let said: Vec<_> = log.lines().filter(|line| line.contains(" WARN ")).collect();
    let [line] = said.as_slice() else {
        return Err(Error::Check(format!("not one line was said, but {said:?}")));
    };
    check(line.contains("set `queues = 1`"), || format!("it was said: {line}"))?;
    let reason = line.split_once("reason=").map_or(*line, |(_, reason)| reason).to_owned();
    bed.give_back(partner);
    weir.stop()?;
    Ok(Verdict::Refused(reason))
}

fn prepare(bed: &Bed<'_>, record: &mut Record) -> Found {
    checked(UserModeLinux::prepare(&bed.lab.workspace, &bed.lab.image, &[]), record)
}

fn of_suite(suite: &str, bed: &Bed<'_>, record: &mut Record) -> Found {
    let root = bed.parts.system(suite);
    checked(root.and_then(|root| UserModeLinux::of(root, &bed.lab.image)), record)
}

fn checked(programs: Result<UserModeLinux>, record: &mut Record) -> Found {
    let programs = programs.map_err(|error| format!("no user-mode Linux: {error}"))?;
    record.version = Some(programs.version.clone());
    let runs = programs.runs_here();
    runs.map_err(|error| {
        format!(
            "user-mode Linux does not run here, with or without a network: on processors with more registers than it \
             knows, its first process dies or spins ({error})"
        )
    })?;
    Ok(programs)
}

fn start(programs: &UserModeLinux, weir: &Weir) -> Result<Guest> {
    let mut guest = boot(programs, weir)?;
    uml::set_addresses(&mut guest, TESTED)?;
    Ok(guest)
}

fn boot(programs: &UserModeLinux, weir: &Weir) -> Result<Guest> {
    programs.boot(&Wire::VhostUser(&weir.socket(TESTED)?), &weir.dir().join("uml.console"))
}
