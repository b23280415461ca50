//! The installed QEMU, and the running ones; versions and sizes as QEMU has them.

use std::fmt;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::sync::mpsc;
use std::time::Duration;

use thiserror::Error;

/// The first QEMU that can use interrupt vectors with an emulated processor. An older one exits when a guest uses
/// vectors of a vhost-user device. `/dev/kvm` does not say whether a VM has an emulated processor.
pub const VECTORS_MIN: (u32, u32) = (10, 0);
/// Distributions' names for the QEMU for guests of this machine's kind.
const PROGRAMS: [&str; 4] = [of_this_machine(), "qemu-kvm", "/usr/libexec/qemu-kvm", "kvm"];
/// Longest wait for a QEMU to print its version, which takes some 30 ms.
const PATIENCE: Duration = Duration::from_secs(3);
/// Most bytes that are read of QEMU's answer, more than a version needs.
const ANSWER_BYTES_MAX: u64 = 4096;

/// The name of QEMU's program for this machine: QEMU's name of the architecture is not always Rust's.
const fn of_this_machine() -> &'static str {
    if cfg!(target_arch = "x86_64") {
        "qemu-system-x86_64"
    } else if cfg!(target_arch = "aarch64") {
        "qemu-system-aarch64"
    } else if cfg!(target_arch = "s390x") {
        "qemu-system-s390x"
    } else if cfg!(target_arch = "riscv64") {
        "qemu-system-riscv64"
    } else {
        "qemu-system-ppc64"
    }
}

/// The version of the QEMU in `PATH`, as major and minor number; `None` if none prints one.
pub fn installed_version() -> Option<(u32, u32)> {
    PROGRAMS.iter().find_map(|program| version_of(Path::new(program)))
}

/// A QEMU release: major and minor number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct QemuVersion(pub u32, pub u32);

impl fmt::Display for QemuVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// Text that is no [`QemuVersion`].
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("write MAJOR.MINOR, for example 10.0")]
pub struct NotAVersion;

impl FromStr for QemuVersion {
    type Err = NotAVersion;
    fn from_str(text: &str) -> Result<Self, NotAVersion> {
        let mut parts = text.splitn(3, '.').map(|part| part.parse::<u32>().ok());
        match (parts.next().flatten(), parts.next().flatten()) {
            (Some(major), Some(minor)) => Ok(Self(major, minor)),
            _ => Err(NotAVersion),
        }
    }
}

/// The memory of a VM, in whole MiB: `512M`, `1G`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemorySize {
    mib: u64,
}

/// Text that is no [`MemorySize`].
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("write a whole number and a unit, M or G, for example 512M or 2G")]
pub struct NotAMemorySize;

impl MemorySize {
    /// The number of MiB.
    pub fn mib(self) -> u64 {
        self.mib
    }
}

impl FromStr for MemorySize {
    type Err = NotAMemorySize;
    fn from_str(text: &str) -> Result<Self, NotAMemorySize> {
        let (number, unit_mib) = match (text.strip_suffix('M'), text.strip_suffix('G')) {
            (Some(number), _) => (number, 1),
            (_, Some(number)) => (number, 1024),
            (None, None) => return Err(NotAMemorySize),
        };
        let number = number.parse::<u64>().map_err(|_| NotAMemorySize)?;
        match number.checked_mul(unit_mib) {
            Some(mib) if mib > 0 => Ok(Self { mib }),
            _ => Err(NotAMemorySize),
        }
    }
}

impl fmt::Display for MemorySize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.mib.is_multiple_of(1024) {
            write!(f, "{}G", self.mib / 1024)
        } else {
            write!(f, "{}M", self.mib)
        }
    }
}

/// Whether this process may run VMs by KVM.
///
/// # Errors
/// The reason why not, with what can be done about it.
pub fn kvm() -> Result<(), String> {
    kvm_by(Path::new("/dev/kvm"))
}

fn kvm_by(device: &Path) -> Result<(), String> {
    let opened = File::options().read(true).write(true).open(device);
    let shown = device.display();
    opened.map(drop).map_err(|error| match error.kind() {
        ErrorKind::NotFound => format!(
            "this host has no {shown}: switch virtualization on in its firmware, or, if it is a VM, nested \
             virtualization at its own host"
        ),
        ErrorKind::PermissionDenied => {
            format!("you may not use {shown}: `usermod -aG kvm USER` as root, and log in anew")
        }
        _ => format!("{shown}: {error}"),
    })
}

/// The version that a QEMU prints; `None` if the program cannot be run, takes too long, or prints none.
pub fn version_of(program: &Path) -> Option<(u32, u32)> {
    let mut qemu = Command::new(program)
        .arg("--version")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let output = qemu.stdout.take()?;
    let (sender, answer) = mpsc::channel();
    // The reader has its own thread: the process that holds the pipe's other end need not be this
    // child.
    std::thread::spawn(move || {
        let mut said = Vec::new();
        let read = output.take(ANSWER_BYTES_MAX).read_to_end(&mut said);
        let _ = sender.send(read.map(|_| said));
    });
    let said = answer.recv_timeout(PATIENCE);
    let _ = qemu.kill();
    let _ = qemu.wait();
    let said = String::from_utf8_lossy(&said.ok()?.ok()?).into_owned();
    version(said.split_once(BEFORE_VERSION)?.1)
}

/// Longer than any QEMU: 30 MB.
const PROGRAM_BYTES_MAX: u64 = 256 << 20;
/// The number of bytes that are searched at a time.
const PIECE_BYTES: u64 = 1 << 20;
/// Enough bytes for the major and minor number of a version.
const VERSION_BYTES_MAX: usize = 16;
/// The text before a QEMU's version, in its answer and in its program.
const BEFORE_VERSION: &str = "QEMU emulator version ";

/// The version in the program file of a process or a domain; `None` if the file has no version or cannot be read. The
/// program is not run: the caller may be root, and the program belongs to another user.
pub fn version_in(program: &Path) -> Option<(u32, u32)> {
    let file = File::open(program).ok()?;
    let len = file.metadata().ok().filter(|it| it.is_file())?.len();
    let mut file = file.take(len.min(PROGRAM_BYTES_MAX));
    let before = BEFORE_VERSION.as_bytes();
    let mut piece = Vec::new();
    loop {
        // The last bytes are searched again with the next piece, because a version may lie across the border.
        let kept = piece.len().min(before.len() + VERSION_BYTES_MAX);
        piece.drain(..piece.len() - kept);
        let read = file.by_ref().take(PIECE_BYTES).read_to_end(&mut piece).ok()?;
        if let Some(at) = piece.windows(before.len()).position(|bytes| bytes == before) {
            let said = &piece[at + before.len()..];
            if said.len() >= VERSION_BYTES_MAX || read == 0 {
                return version(&String::from_utf8_lossy(
                    &said[..said.len().min(VERSION_BYTES_MAX)],
                ));
            }
        }
        if read == 0 {
            return None;
        }
    }
}

/// The first two numbers of `text`, which is `6.12.0-13-amd64`, or the part of a line after `version`.
pub(super) fn version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::time::Instant;

    use super::*;

    fn said_by(script: &str) -> Option<(u32, u32)> {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("qemu");
        fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
        version_of(&program)
    }

    #[test]
    fn a_host_without_kvm_says_why_a_vm_is_slow() {
        let dir = tempfile::tempdir().unwrap();
        let device = dir.path().join("kvm");
        assert!(kvm_by(&device).unwrap_err().contains("has no"));
        fs::write(&device, "").unwrap();
        assert_eq!(kvm_by(&device), Ok(()));
        if rustix::process::geteuid().is_root() {
            return;
        }
        fs::set_permissions(&device, fs::Permissions::from_mode(0o400)).unwrap();
        assert!(kvm_by(&device).unwrap_err().contains("usermod -aG kvm"));
    }

    #[test]
    fn a_qemu_says_its_version() {
        for (said, version) in [
            ("7.2.19 (Debian 1:7.2+dfsg-7+deb12u13)", (7, 2)),
            ("10.0.2 (Debian 1:10.0.2+ds-2+deb13u1~bpo12+1)", (10, 0)),
            ("11.1.3", (11, 1)),
            ("11.0.0-rc2 (v11.0.0-rc2)", (11, 0)),
        ] {
            assert_eq!(said_by(&format!("echo 'QEMU emulator version {said}'")), Some(version));
        }
    }

    #[test]
    fn a_version_is_read_from_a_program_wherever_it_lies() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("qemu");
        let text = format!("{BEFORE_VERSION}11.1.3 (Debian)");
        for before in [0, 1, PIECE_BYTES as usize - 30, PIECE_BYTES as usize - 5] {
            for after in [0, 100] {
                let bytes = [vec![0; before], text.clone().into(), vec![0; after]].concat();
                fs::write(&program, bytes).unwrap();
                assert_eq!(version_in(&program), Some((11, 1)), "{before}, {after}");
            }
        }
        for none in [BEFORE_VERSION, "", "QEMU", "QEMU emulator version x"] {
            fs::write(&program, none).unwrap();
            assert_eq!(version_in(&program), None, "{none}");
        }
        assert_eq!(version_in(dir.path()), None, "a directory");
        assert_eq!(version_in(Path::new("/no/such/qemu")), None);
    }

    #[test]
    fn a_program_that_says_no_version_is_none() {
        for script in ["exit 1", "echo 'Xen 4.17'", "echo 'QEMU emulator version'", ":"] {
            assert_eq!(said_by(script), None, "{script}");
        }
        assert_eq!(version_of(Path::new("/no/such/qemu")), None);
        assert_eq!(version_of(Path::new("/")), None);
    }

    #[test]
    fn a_program_that_hangs_or_never_stops_talking_is_given_up() {
        let start = Instant::now();
        assert_eq!(said_by("exec sleep 100"), None);
        assert_eq!(said_by("sleep 100 & exit"), None, "its child has the pipe");
        assert_eq!(said_by("exec yes"), None);
        assert!(start.elapsed() < Duration::from_secs(60));
    }
}
