//! Decides which files may be a guest's memory.
//!
//! An access to a mapped file can wait for the server of its file system. With FUSE, and file
//! systems on top of it, anybody can be that server. So only tmpfs (memfd, `/dev/shm`), hugetlbfs
//! and named file systems are allowed. weir does not even ask another file for its size, because
//! the question goes to its server.

use std::ffi::CStr;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, StatxFlags, fcntl_get_seals, statx};
use weir_limits::MOUNTINFO_BYTES_MAX;

/// Error: the file system is not allowed.
#[derive(Debug)]
pub(crate) struct Refused {
    /// Name of the file system, if known.
    pub(crate) file_system: Option<String>,
}

/// Refuses a file whose file system is neither tmpfs nor hugetlbfs nor in `allowed`.
pub(crate) fn judge(file: &File, allowed: &[String]) -> Result<(), Refused> {
    // The kernel itself answers: only files of tmpfs and hugetlbfs have seals.
    if fcntl_get_seals(file).is_ok() {
        return Ok(());
    }
    let file_system = file_system(file.as_fd());
    match &file_system {
        Some(name) if allowed.contains(name) => Ok(()),
        _ => Err(Refused { file_system }),
    }
}

/// Returns the name of a file's file system from `/proc/self/mountinfo`. Asks only the kernel:
/// neither the file system (`statfs`) nor the file (`/proc/self/fdinfo`, which can be long).
fn file_system(file: BorrowedFd<'_>) -> Option<String> {
    const NO_PATH: &CStr = c"";
    let how = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let told = statx(file, NO_PATH, how, StatxFlags::MNT_ID).ok()?;
    let mount = (told.stx_mask & StatxFlags::MNT_ID.bits() != 0).then_some(told.stx_mnt_id);
    let mut mounts = String::new();
    let list = File::open("/proc/self/mountinfo").ok()?;
    list.take(MOUNTINFO_BYTES_MAX).read_to_string(&mut mounts).ok()?;
    let device = format!("{}:{}", told.stx_dev_major, told.stx_dev_minor);
    let mounts = || mounts.lines().filter_map(Mount::parse);
    // A front end in a container has its own mounts, but the device is the same.
    let found = mounts()
        .find(|found| Some(found.id) == mount)
        .or_else(|| mounts().find(|found| found.device == device));
    found.map(|found| found.file_system.to_owned())
}

/// A line of `/proc/self/mountinfo` (proc_pid_mountinfo(5)).
#[derive(Debug, PartialEq, Eq)]
struct Mount<'l> {
    id: u64,
    device: &'l str,
    file_system: &'l str,
}

impl<'l> Mount<'l> {
    fn parse(line: &'l str) -> Option<Self> {
        let (place, kind) = line.split_once(" - ")?;
        let mut place = place.split(' ');
        let id = place.next()?.parse().ok()?;
        let device = place.nth(1)?;
        Some(Self { id, device, file_system: kind.split(' ').next()? })
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    #[test]
    fn memfds_and_files_of_tmpfs_are_allowed_and_others_by_name() {
        let memfd = File::from(memfd_create("x", MemfdFlags::CLOEXEC).unwrap());
        judge(&memfd, &[]).unwrap();
        let path = format!("/dev/shm/weir-test-{}", std::process::id());
        let in_shm = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        judge(&in_shm, &[]).unwrap();
        // The program's file system is that of a disk or a container.
        let program = File::open("/proc/self/exe").unwrap();
        let Err(Refused { file_system: Some(name) }) = judge(&program, &[]) else {
            panic!("{:?}", judge(&program, &[]))
        };
        judge(&program, &[name]).unwrap();
        let proc = File::open("/proc/self/status").unwrap();
        assert_eq!(judge(&proc, &[]).unwrap_err().file_system.as_deref(), Some("proc"));
    }

    #[test]
    fn a_name_says_nothing() {
        let dir = std::env::temp_dir().join(format!("weir-names-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let on_tmpfs = rustix::fs::statfs(&dir).unwrap().f_type == 0x0102_1994;
        let path = dir.join("memfd:x (deleted)");
        let spoofed = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(judge(&spoofed, &[]).is_ok(), on_tmpfs);
    }

    #[test]
    fn lines_of_mountinfo_are_taken_apart() {
        let line = "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - fuse.sshfs /dev/root rw";
        let mount = Mount { id: 36, device: "98:0", file_system: "fuse.sshfs" };
        assert_eq!(Mount::parse(line), Some(mount));
        assert_eq!(Mount::parse("36 35 98:0 /mnt1"), None);
        assert_eq!(Mount::parse(""), None);
    }
}
