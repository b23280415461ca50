//! Dirty logs (vhost-user, "Migration") that are too short, of a wrong kind, too large, or truncated.

use std::{
    fs::File,
    os::fd::{AsFd, OwnedFd},
};

use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create,
};

use crate::{
    attack,
    attack::{Attack, Field},
    front::{
        Strike,
        frame::{BROADCAST, EXPERIMENTAL, Header, frame},
        guest::{GUEST, Guest, LOG_ALL, Plan, USER},
        link::{one_region, region, request},
        memory::memfd,
    },
};

/// The attacks of the class.
pub const ALL: &[Attack] = &[
    attack!(logs_that_are_too_short, "shares a dirty log without bits for its memory"),
    attack!(
        logs_that_are_no_memory,
        "shares a device, /proc, a directory and a sealed file as log"
    ),
    attack!(a_log_of_32_tib, "shares a log that fills the address space and has no page"),
    attack!(logs_at_odd_offsets, "shares logs at offsets that are no word's, or beyond the file"),
    attack!(logs_without_pause, "replaces its log as fast as weir takes it, under traffic"),
    attack!(logging_on_and_off, "switches logging on and off without pause, under traffic"),
    attack!(used_rings_beyond_the_log, "has used rings logged at addresses that have no bit"),
    attack!(memory_beyond_the_log, "adds memory that its log has no bit for"),
    attack!(log_cut_while_rings_run, "cuts its log to nothing while weir writes it"),
    attack!(log_cut_and_grown, "cuts and grows its log again and again under traffic"),
    attack!(log_punched_while_rings_run, "punches holes into its log while weir writes it"),
];

/// Larger than one bit per page of the usual guest's memory.
const LOG_LEN: u64 = 1 << 18;

/// The body of `SET_LOG_BASE`.
fn log(size: u64, offset: u64) -> Vec<u8> {
    [size, offset].map(u64::to_ne_bytes).concat()
}

fn plan() -> Plan {
    let usual = Plan::default();
    Plan { features: usual.features | LOG_ALL, ..usual }
}

/// Shares a log that weir must refuse.
fn refused(field: &Field, body: &[u8], file: &OwnedFd, why: &str) -> Strike {
    let guest = field.guest(plan())?;
    guest.link.tell(request::SET_LOG_BASE, body, &[file.as_fd()])?;
    guest.link.hung_up(why)?;
    field.struck();
    Ok(())
}

/// A guest that logs to the file and has just made a full ring available.
fn busy(field: &Field) -> Strike<(Guest, OwnedFd)> {
    let (guest, file) = (field.guest(plan())?, memfd(LOG_LEN)?);
    guest.link.acked(request::SET_LOG_BASE, &log(LOG_LEN, 0), &[file.as_fd()])?;
    for ring in 0..guest.rings() {
        guest.log_ring(ring, GUEST)?;
    }
    // The answer shows that weir has read the messages before. Otherwise frames might be used before it has.
    guest.link.ask(request::GET_FEATURES)?;
    let sent = frame(BROADCAST, Guest::mac(0), EXPERIMENTAL, 60);
    guest.load(1, |_| (Header::default(), sent.clone()));
    guest.pump(1);
    Ok((guest, file))
}

fn logs_that_are_too_short(field: &Field) -> Strike {
    let file = memfd(LOG_LEN)?;
    for size in [0, 1, 2, 8, 4096, LOG_LEN / 2 - 4096, LOG_LEN + 1, u64::MAX] {
        refused(field, &log(size, 0), &file, "a log that is too short")?;
    }
    Ok(())
}

fn logs_that_are_no_memory(field: &Field) -> Strike {
    let sealed = memfd_create("sealed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&sealed, LOG_LEN)?;
    fcntl_add_seals(&sealed, SealFlags::WRITE)?;
    let files = ["/dev/zero", "/proc/self/maps", "/"].map(File::open);
    let files: Result<Vec<_>, _> = files.into_iter().collect();
    for file in files?.into_iter().map(OwnedFd::from).chain([sealed]) {
        refused(field, &log(LOG_LEN, 0), &file, "a log that is no memory")?;
    }
    Ok(())
}

fn a_log_of_32_tib(field: &Field) -> Strike {
    refused(field, &log(1 << 45, 0), &memfd(1 << 45)?, "a log of 32 TiB")
}

fn logs_at_odd_offsets(field: &Field) -> Strike {
    let file = memfd(2 * LOG_LEN)?;
    for offset in [1, 4, 2 * LOG_LEN, 1 << 40, u64::MAX - 7, u64::MAX] {
        refused(field, &log(LOG_LEN, offset), &file, "a log at no place")?;
    }
    Ok(())
}

fn logs_without_pause(field: &Field) -> Strike {
    let (guest, file) = busy(field)?;
    loop {
        guest.link.acked(request::SET_LOG_BASE, &log(LOG_LEN, 0), &[file.as_fd()])?;
        guest.pump(1);
        field.struck();
    }
}

fn logging_on_and_off(field: &Field) -> Strike {
    let (guest, file) = busy(field)?;
    let features = plan().features;
    loop {
        guest.link.tell_u64(request::SET_FEATURES, features & !LOG_ALL)?;
        guest.link.tell(request::SET_VRING_ADDR, &Guest::addresses(1, Guest::places(1)), &[])?;
        guest.link.acked(request::SET_LOG_BASE, &log(LOG_LEN, 0), &[file.as_fd()])?;
        guest.link.tell_u64(request::SET_FEATURES, features)?;
        guest.log_ring(1, GUEST)?;
        guest.pump(1);
        field.struck();
    }
}

fn used_rings_beyond_the_log(field: &Field) -> Strike {
    let bits = 8 * LOG_LEN * 4096;
    for at in [bits, bits - 1, u64::MAX, u64::MAX - 4095, 1 << 63] {
        let (guest, _file) = busy(field)?;
        guest.log_ring(1, at)?;
        guest.link.hung_up("a used ring beyond the log")?;
        field.struck();
    }
    Ok(())
}

fn memory_beyond_the_log(field: &Field) -> Strike {
    let (guest, _file) = busy(field)?;
    let more = memfd(1 << 20)?;
    let body = one_region(&region(8 * LOG_LEN * 4096, 1 << 20, USER << 1, 0));
    guest.link.tell(request::ADD_MEM_REG, &body, &[more.as_fd()])?;
    guest.link.hung_up("memory beyond the log")
}

fn log_cut_while_rings_run(field: &Field) -> Strike {
    let (guest, file) = busy(field)?;
    ftruncate(&file, 0)?;
    guest.pump(1);
    guest.kick(1);
    guest.stopped("a log that is gone")
}

fn log_cut_and_grown(field: &Field) -> Strike {
    let (guest, file) = busy(field)?;
    for _ in 0..50 {
        ftruncate(&file, 0)?;
        guest.pump(1);
        ftruncate(&file, LOG_LEN)?;
        guest.kick(1);
    }
    Ok(())
}

fn log_punched_while_rings_run(field: &Field) -> Strike {
    let (guest, file) = busy(field)?;
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    for _ in 0..200 {
        fallocate(&file, hole, 0, LOG_LEN)?;
        guest.pump(1);
        field.struck();
    }
    guest.link.still_served("holes in its log")
}
