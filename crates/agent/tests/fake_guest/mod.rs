//! A directory with the part of `/sys` and `/proc` that the agent reads.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// Initial settings of each interface, which differ from the kernel's zeros to show more.
pub const FOUND_POLLS: &str = "1";
pub const FOUND_TIMEOUT: &str = "20000";

pub struct FakeGuest {
    dir: TempDir,
}

impl FakeGuest {
    /// Returns a guest with `eth0` (52:54:00:00:00:01, virtio2) and an interface of another driver.
    pub fn new() -> Self {
        let guest = Self { dir: tempfile::tempdir().expect("a directory") };
        guest.write("proc/sys/kernel/osrelease", "6.18.44\n");
        guest.write("sys/class/net/bonding_masters", "");
        guest.add("eth0", "52:54:00:00:00:01", "virtio2", "virtio_net");
        guest.add("ens1", "52:54:00:00:00:99", "0000:00:07.0", "e1000");
        guest.count(0, 0);
        guest
    }

    pub fn add(&self, name: &str, mac: &str, device: &str, driver: &str) {
        let net = format!("sys/class/net/{name}");
        self.write(&format!("{net}/address"), &format!("{mac}\n"));
        self.write(&format!("{net}/napi_defer_hard_irqs"), FOUND_POLLS);
        self.write(&format!("{net}/gro_flush_timeout"), FOUND_TIMEOUT);
        self.write(&format!("{net}/statistics/rx_packets"), "0\n");
        let device_dir = self.path(&format!("sys/devices/{device}"));
        fs::create_dir_all(&device_dir).expect("a directory");
        symlink(format!("../../../bus/drivers/{driver}"), device_dir.join("driver"))
            .expect("a link");
        symlink(format!("../../../devices/{device}"), self.path(&format!("{net}/device")))
            .expect("a link");
    }

    /// Sets the kernel's counters of `eth0`.
    pub fn count(&self, interrupts: u64, rx_packets: u64) {
        self.write(
            "proc/interrupts",
            &format!(
                "           CPU0       CPU1\n 37:  5  0  PCI-MSIX-0000:00:03.0   0-edge  virtio2-config\n \
                 38:  {interrupts}  0  PCI-MSIX-0000:00:03.0   1-edge  virtio2-input.0\n"
            ),
        );
        self.write("proc/stat", &format!("cpu  9 9 {interrupts} 9 9 0 0 0 0 0\n"));
        self.write("sys/class/net/eth0/statistics/rx_packets", &format!("{rx_packets}\n"));
    }

    /// Returns `napi_defer_hard_irqs` and `gro_flush_timeout` of an interface.
    pub fn settings(&self, name: &str) -> (String, String) {
        let read = |file: &str| {
            let path = self.path(&format!("sys/class/net/{name}/{file}"));
            fs::read_to_string(path).expect("a setting")
        };
        (read("napi_defer_hard_irqs"), read("gro_flush_timeout"))
    }

    pub fn is_as_found(&self, name: &str) -> bool {
        self.settings(name) == (FOUND_POLLS.to_owned(), FOUND_TIMEOUT.to_owned())
    }

    pub fn root(&self) -> &Path {
        self.dir.path()
    }

    pub fn path(&self, relative: &str) -> PathBuf {
        self.dir.path().join(relative)
    }

    pub fn write(&self, relative: &str, text: &str) {
        let path = self.path(relative);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        // The file is replaced as a whole, since the kernel's files never show half of a number.
        let new = self.path("new");
        fs::write(&new, text).expect("written");
        fs::rename(new, path).expect("renamed");
    }
}
