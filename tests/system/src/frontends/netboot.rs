//! Firmware that boots over the network: addresses and the name of a file by weir's DHCP, and the file by TFTP from a
//! server behind the TAP uplink.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    time::Duration,
};

use weir_bed::{
    address,
    error::{Error, Result},
    lab::Lab,
    packages,
    process::{Dialogue, Placement, Process, wait_until},
    qemu::{Plug, Qemu},
    uplink::Uplink,
    weir::{self, Setup, Weir},
    weir_stats::Stats,
};

use super::{
    bed::{Bed, RETURN_PATIENCE},
    ipxe::{FEW_BUFFERS, GUEST, HOST, configure, ping},
    linux::{Explanation, drops},
    parts,
    qemu_cells::stop,
    record::{Record, Step, Verdict},
};

/// weir's own address in the guest's subnet.
const WEIR: u8 = 101;

/// The script that iPXE fetches, and the file that the script fetches again and again.
const SCRIPT: &str = "menu.ipxe";
const AGAIN: &str = "again";
const SCRIPT_TEXT: &str = "#!ipxe\n:again\nimgfetch again ||\nimgfree\nsleep 1\ngoto again\n";

/// Length of a file that is not a program. Firmware reports that fact once it has the whole file.
const FILE_BYTES: usize = 64 << 10;

/// iPXE from 2021 on looks for an authenticator.
const SUPPLICANT: Explanation =
    ("reserved_group_address", "iPXE asks for 802.1X by a group address that no bridge forwards");

/// Longest time until firmware has its file. Without KVM it takes a while to begin.
const PATIENCE: Duration = Duration::from_secs(180);

/// The network device of machines with PCI.
const PCI: &str = "virtio-net-pci";

/// Firmware, and the machine that it is for.
#[derive(Clone, Copy, Debug)]
pub struct Firmware {
    qemu: &'static str,
    /// The suite of Debian that QEMU and the boot ROM come from; `None`: the installed programs.
    suite: Option<&'static str>,
    machine: &'static str,
    /// Arguments of the machine, with the firmware if QEMU has none for it.
    args: &'static [&'static str],
    /// The network device and its further options.
    device: (&'static str, &'static str),
    /// The elements of `boot_file`. The server has the firmware's file only.
    boot_file: &'static str,
    /// The files that the firmware fetches at first, in this order. Without any, weir refuses the firmware's driver.
    fetches: &'static [&'static str],
    /// The file that the firmware fetches afterwards.
    again: &'static str,
    /// The text that is typed to fetch the file. `None`: a script fetches it all the time.
    typed: Option<&'static str>,
}

/// SeaBIOS and the boot ROM of QEMU's network device.
pub const IPXE: Firmware = Firmware {
    qemu: packages::QEMU,
    suite: None,
    machine: "pc",
    args: &["-boot", "n"],
    device: (PCI, ""),
    boot_file: "\"nobodys\", \"bios undionly.kpxe\", \"ipxe menu.ipxe\"",
    fetches: &[SCRIPT],
    again: AGAIN,
    typed: None,
};

/// Like the one above, of Debian 13.
pub const IPXE_OF_13: Firmware = Firmware { suite: Some("trixie"), ..IPXE };

/// Like the one above, of Debian sid.
pub const IPXE_OF_SID: Firmware = Firmware { suite: Some("sid"), ..IPXE };

/// OVMF loads iPXE, which asks again.
pub const OVMF: Firmware = Firmware {
    machine: "q35",
    args: &["-boot", "n", "-bios", "/usr/share/ovmf/OVMF.fd"],
    device: (PCI, ",romfile="),
    boot_file: "\"nobodys\", \"efi-x64 snponly.efi\", \"ipxe menu.ipxe\"",
    fetches: &[parts::IPXE_FOR_EFI, SCRIPT],
    ..IPXE
};

/// U-Boot looks for a program of EFI at first, and for any file when it is told to.
const U_BOOT: Firmware = Firmware {
    // From a device that has virtio 0.9 as well, U-Boot 2023.01 reads a wrong address.
    device: (PCI, ",romfile=,disable-legacy=on"),
    fetches: &["program.efi"],
    again: "image",
    typed: Some("dhcp\n"),
    ..IPXE
};

/// U-Boot of arm64, which names its architecture whenever it asks.
pub const U_BOOT_ARM64: Firmware = Firmware {
    qemu: "/usr/bin/qemu-system-aarch64",
    machine: "virt",
    args: &["-cpu", "cortex-a57", "-bios", "/usr/lib/u-boot/qemu_arm64/u-boot.bin"],
    boot_file: "\"nobodys\", \"efi-arm64 program.efi\", \"22 image\"",
    ..U_BOOT
};

/// U-Boot of 32-bit ARM.
pub const U_BOOT_ARM: Firmware = Firmware {
    qemu: "/usr/bin/qemu-system-arm",
    machine: "virt",
    args: &["-cpu", "cortex-a15", "-bios", "/usr/lib/u-boot/qemu_arm/u-boot.bin"],
    boot_file: "\"nobodys\", \"efi-arm program.efi\", \"21 image\"",
    ..U_BOOT
};

/// U-Boot of RISC-V, above OpenSBI.
pub const U_BOOT_RISCV64: Firmware = Firmware {
    qemu: "/usr/bin/qemu-system-riscv64",
    machine: "virt",
    args: &["-kernel", "/usr/lib/u-boot/qemu-riscv64_smode/u-boot.bin"],
    boot_file: "\"image\", \"efi-riscv64 program.efi\"",
    ..U_BOOT
};

/// U-Boot of x86-64.
pub const U_BOOT_X86_64: Firmware = Firmware {
    args: &["-bios", "/usr/lib/u-boot/qemu-x86_64/u-boot.rom"],
    boot_file: "\"image\", \"efi-x64 program.efi\"",
    ..U_BOOT
};

/// SLOF, of POWER machines.
pub const SLOF: Firmware = Firmware {
    qemu: "/usr/bin/qemu-system-ppc64",
    machine: "pseries",
    boot_file: "\"nobodys\", \"12 client\"",
    fetches: &["client"],
    again: "client",
    typed: Some("boot\r"),
    ..IPXE
};

/// The firmware of s390x in QEMU 7.2 has a driver of virtio 0.9, which is big-endian.
pub const S390X: Firmware = Firmware {
    qemu: "/usr/bin/qemu-system-s390x",
    machine: "s390-ccw-virtio",
    args: &[],
    device: ("virtio-net-ccw", ",bootindex=1"),
    boot_file: "\"31 image\"",
    fetches: &[],
    again: "image",
    typed: None,
    ..IPXE
};

/// Firmware that was started. The server is in the namespace of weir's uplink, and ends before weir.
struct Started {
    qemu: Process,
    console: Dialogue,
    server: Server,
    weir: Weir,
}

impl Firmware {
    /// Runs the cell.
    pub fn run(&self, bed: &Bed<'_>, record: &mut Record) -> Result<Verdict> {
        let lab = bed.lab;
        let found = packages::ensure_net_boot(&lab.workspace).and_then(|()| {
            let (qemu, program) = match self.suite {
                Some(suite) => bed.parts.qemu_of(suite)?,
                None => (Qemu::at(self.qemu)?, self.qemu.to_owned()),
            };
            Ok((qemu, program, bed.parts.ipxe_for_efi()?))
        });
        let (qemu, program, ipxe) = match found {
            Ok(found) => found,
            Err(error) => return Ok(Verdict::Skipped(format!("no firmware or server: {error}"))),
        };
        if let Some(suite) = self.suite {
            record.version = Some(bed.parts.version_of(suite, parts::DEVICE_ROMS_PACKAGE)?);
        }
        let started = self.start(lab, (qemu, &program), &ipxe)?;
        match self.fetches {
            [] => is_refused(started),
            _ => self.boots(started, &lab.image.busybox.to_string_lossy(), record),
        }
    }

    fn start(&self, lab: &Lab, (qemu, program): (Qemu, &str), ipxe: &Path) -> Result<Started> {
        let dir = lab.workspace.run_dir("netboot")?;
        let (guest, server) = (address::ip(GUEST), address::ip(HOST));
        let network = format!(
            "address = \"{}\"\ndhcp = true\nfixed = \"{} {guest}\"\nboot_server = \"{server}\"\n\
             boot_file = [{}]",
            address::cidr(WEIR),
            weir::name(GUEST),
            self.boot_file,
        );
        let setup = Setup { uplink: Some(Uplink::Tap), network: Some(network), ..Setup::vifs(1) };
        let weir = Weir::start_in(dir.clone(), lab, &setup)?;
        configure(weir.uplink()?.host(), weir.uplink()?.interface())?;
        let server = Server::start(&dir, self, ipxe, &weir.uplink()?.host().placement())?;
        let plug = self.adapt(weir.plug_into(qemu, GUEST)?);
        let mut argv = vec![program, "-accel", "tcg", "-nodefaults", "-display", "none"];
        // With two possible processors, QEMU before 8.1 keeps memory barriers.
        argv.extend(["-smp", "1,maxcpus=2", "-serial", "stdio"]);
        argv.extend(self.args);
        argv.extend(plug.qemu_args.iter().map(String::as_str));
        let (qemu, console) = Process::start_dialogue(&argv, &plug.placement)?;
        Ok(Started { qemu, console, server, weir })
    }

    fn boots(&self, started: Started, busybox: &str, record: &mut Record) -> Result<Verdict> {
        let Started { mut weir, server, mut console, mut qemu } = started;
        record.step(Step::Link, || {
            for file in self.fetches {
                server.await_file(file, &console)?;
            }
            Ok("DHCP and TFTP".into())
        })?;
        match self.typed {
            None => record.step(Step::Ping, || ping(weir.uplink()?.host(), busybox))?,
            Some(_) => record.leave_out(Step::Ping, "it answers only while it loads a file"),
        }
        record.leave_out(Step::Fragments, "firmware sends no fragments");
        record.leave_out(Step::Tcp, "TFTP goes over UDP");
        let before = weir.stats()?;
        record.step(Step::Reconnect, || {
            weir.crash();
            weir.launch_again()?;
            configure(weir.uplink()?.host(), weir.uplink()?.interface())?;
            // SLOF's device is not running until SLOF boots again.
            wait_until("the guest to be back", RETURN_PATIENCE, || {
                Ok(weir.log().matches("front end connected").count() == 2)
            })?;
            server.forget()?;
            if let Some(typed) = self.typed {
                let typed = console.stdin.write_all(typed.as_bytes());
                typed.and_then(|()| console.stdin.flush()).map_err(|source| Error::Io {
                    what: "type at the firmware's console".into(),
                    source,
                })?;
            }
            server.await_file(self.again, &console)?;
            Ok(if self.typed.is_some() { "boots again" } else { "by itself" }.into())
        })?;
        record.step(Step::Drops, || {
            drops(&[before, weir.stats()?], &weir::name(GUEST), &[FEW_BUFFERS, SUPPLICANT])
        })?;
        qemu.check_alive()?;
        drop((qemu, server));
        stop(weir)
    }

    /// Changes the arguments as a user would by hand.
    fn adapt(&self, mut plug: Plug) -> Plug {
        let (device, more) = self.device;
        for arg in &mut plug.qemu_args {
            if arg.starts_with("memory-backend=") {
                *arg = format!("{},{arg}", self.machine);
            } else if let Some(options) = arg.strip_prefix(PCI) {
                // Devices on other buses have no vectors.
                let kept = |it: &&str| device == PCI || !it.starts_with("vectors=");
                let options: Vec<_> = options.split(',').filter(kept).collect();
                *arg = format!("{device}{}{more}", options.join(","));
            }
        }
        plug
    }
}

/// Waits until weir has refused the firmware's driver.
fn is_refused(started: Started) -> Result<Verdict> {
    let Started { mut weir, server, qemu, .. } = started;
    let reason =
        |stats: &Stats| stats.stopped_reason(&weir::name(GUEST)).ok().flatten().map(str::to_owned);
    weir.await_stats("a refusal of the driver", PATIENCE, |stats| reason(stats).is_some())?;
    let why = reason(&weir.stats()?);
    drop((qemu, server));
    weir.stop()?;
    why.map(Verdict::Refused).ok_or_else(|| Error::Check("the interface goes on".into()))
}

/// A TFTP server behind the uplink.
struct Server {
    _process: Process,
    log: PathBuf,
}

impl Server {
    fn start(dir: &Path, firmware: &Firmware, ipxe: &Path, placement: &Placement) -> Result<Self> {
        let files = dir.join("files");
        fs::create_dir_all(&files).map_err(Error::io("make", &files))?;
        for name in firmware.fetches.iter().chain([&firmware.again]) {
            let path = files.join(name);
            let content = match *name {
                SCRIPT => SCRIPT_TEXT.as_bytes().to_vec(),
                parts::IPXE_FOR_EFI => fs::read(ipxe).map_err(Error::io("read", ipxe))?,
                _ => vec![7; FILE_BYTES],
            };
            fs::write(&path, content).map_err(Error::io("write", &path))?;
        }
        let (root, address) = (format!("--tftp-root={}", files.display()), address::ip(HOST));
        let address = format!("--listen-address={address}");
        let argv = [
            packages::DNSMASQ,
            "--keep-in-foreground",
            "--conf-file=/dev/null",
            "--pid-file=",
            "--user=root",
            "--log-facility=-",
            "--port=0",
            "--enable-tftp",
            &root,
            &address,
            "--bind-interfaces",
        ];
        let log = dir.join("tftp.log");
        Ok(Self { _process: Process::start_logged(&argv, placement, &log)?, log })
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Forgets the files that were sent so far.
    fn forget(&self) -> Result<()> {
        fs::write(&self.log, "").map_err(Error::io("write", &self.log))
    }

    /// Waits until all of `file` was sent. An error has the end of what the firmware said.
    fn await_file(&self, file: &str, console: &Dialogue) -> Result<()> {
        let (sent, to) = (format!("/{file} to "), address::ip(GUEST));
        let is_it = |line: &str| line.contains(" sent ") && line.ends_with(&format!("{sent}{to}"));
        let what = format!("the firmware to fetch {file}");
        wait_until(&what, PATIENCE, || Ok(self.log().lines().any(is_it))).map_err(|error| {
            let said: Vec<_> = console.lines.try_iter().collect();
            let end = said.get(said.len().saturating_sub(30)..).unwrap_or_default();
            Error::Check(format!("{error}\n{}\n{}", self.log(), end.join("\n")))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_are_those_of_the_firmwares_machine() {
        let args = ["-machine", "memory-backend=m", "-device", "virtio-net-pci,netdev=n"];
        let plug =
            Plug { qemu_args: args.map(String::from).to_vec(), placement: Placement::default() };
        let device = "virtio-net-pci,netdev=n,romfile=,disable-legacy=on";
        let args = ["-machine", "virt,memory-backend=m", "-device", device];
        assert_eq!(U_BOOT_ARM64.adapt(plug).qemu_args, args);
        let args = ["-device", "virtio-net-pci,netdev=n,vectors=0,x=1"];
        let plug =
            Plug { qemu_args: args.map(String::from).to_vec(), placement: Placement::default() };
        assert_eq!(S390X.adapt(plug).qemu_args[1], "virtio-net-ccw,netdev=n,x=1,bootindex=1");
    }
}
