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
    packages,
    process::{Dialogue, Placement, Process, wait_until},
    qemu::{Plug, Qemu},
    uplink::Uplink,
    weir::{self, Setup, Weir},
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

/// A file that is no program: firmware says so when it has all of it.
const FILE_BYTES: usize = 64 << 10;

/// iPXE from 2021 on looks for an authenticator.
const SUPPLICANT: Explanation =
    ("reserved_group_address", "iPXE asks for 802.1X by a group address that no bridge forwards");

/// Longest time until firmware has its file. Without KVM it takes a while to begin.
const PATIENCE: Duration = Duration::from_secs(180);

/// Firmware, and the machine that it is for.
#[derive(Clone, Copy, Debug)]
pub struct Firmware {
    qemu: &'static str,
    /// The suite of Debian whose QEMU and boot ROM they are, if not the installed ones.
    suite: Option<&'static str>,
    machine: &'static str,
    args: &'static [&'static str],
    /// Further options of the network device.
    device: &'static str,
    /// The firmware's file, if QEMU has none for the machine.
    image: Option<&'static str>,
    /// The elements of `boot_file`, of which the server has only the firmware's.
    boot_file: &'static str,
    /// The files that the firmware fetches at first, in this order.
    fetches: &'static [&'static str],
    /// The file that it fetches afterwards.
    again: &'static str,
    /// What is typed for that. Without it, a script fetches the file all the time.
    typed: Option<&'static str>,
}

/// SeaBIOS and the boot ROM of QEMU's network device.
pub const IPXE: Firmware = Firmware {
    qemu: packages::QEMU,
    suite: None,
    machine: "pc",
    args: &["-boot", "n"],
    device: "",
    image: None,
    boot_file: "\"nobodys\", \"bios undionly.kpxe\", \"ipxe menu.ipxe\"",
    fetches: &[SCRIPT],
    again: AGAIN,
    typed: None,
};

/// OVMF loads iPXE, which asks again.
pub const OVMF: Firmware = Firmware {
    machine: "q35",
    device: ",romfile=",
    image: Some("/usr/share/ovmf/OVMF.fd"),
    boot_file: "\"nobodys\", \"efi-x64 snponly.efi\", \"ipxe menu.ipxe\"",
    fetches: &[parts::IPXE_FOR_EFI, SCRIPT],
    ..IPXE
};

/// U-Boot of arm64. At first it looks for a program as EFI does, and by its own architecture when it is told to.
pub const U_BOOT: Firmware = Firmware {
    qemu: "/usr/bin/qemu-system-aarch64",
    suite: None,
    machine: "virt",
    args: &["-cpu", "cortex-a57"],
    // From a device that has virtio 0.9 as well, U-Boot 2023.01 reads a wrong address.
    device: ",romfile=,disable-legacy=on",
    image: Some("/usr/lib/u-boot/qemu_arm64/u-boot.bin"),
    boot_file: "\"nobodys\", \"efi-arm64 program.efi\", \"22 image\"",
    fetches: &["program.efi"],
    again: "image",
    typed: Some("dhcp\n"),
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

/// The cell of QEMU's boot ROM.
pub fn ipxe(bed: &mut Bed<'_>, record: &mut Record) -> Result<Verdict> {
    IPXE.boots(bed, record)
}

/// The cell of Debian 13's boot ROM.
pub fn ipxe_of_13(bed: &mut Bed<'_>, record: &mut Record) -> Result<Verdict> {
    Firmware { suite: Some("trixie"), ..IPXE }.boots(bed, record)
}

/// The cell of Debian sid's boot ROM.
pub fn ipxe_of_sid(bed: &mut Bed<'_>, record: &mut Record) -> Result<Verdict> {
    Firmware { suite: Some("sid"), ..IPXE }.boots(bed, record)
}

/// The cell of OVMF.
pub fn ovmf(bed: &mut Bed<'_>, record: &mut Record) -> Result<Verdict> {
    OVMF.boots(bed, record)
}

/// The cell of U-Boot.
pub fn u_boot(bed: &mut Bed<'_>, record: &mut Record) -> Result<Verdict> {
    U_BOOT.boots(bed, record)
}

/// The cell of SLOF.
pub fn slof(bed: &mut Bed<'_>, record: &mut Record) -> Result<Verdict> {
    SLOF.boots(bed, record)
}

impl Firmware {
    fn boots(&self, bed: &Bed<'_>, record: &mut Record) -> Result<Verdict> {
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
        let mut weir = Weir::start_in(dir.clone(), lab, &setup)?;
        configure(weir.uplink()?.host(), weir.uplink()?.interface())?;
        let server = Server::start(&dir, self, &ipxe, &weir.uplink()?.host().placement())?;

        let plug = self.adapt(weir.plug_into(qemu, GUEST)?);
        let mut argv = vec![program.as_str(), "-accel", "tcg", "-nodefaults", "-display", "none"];
        // So that QEMU before 8.1 keeps memory barriers.
        argv.extend(["-smp", "1,maxcpus=2", "-serial", "stdio"]);
        argv.extend(self.args);
        argv.extend(self.image.iter().flat_map(|image| ["-bios", image]));
        argv.extend(plug.qemu_args.iter().map(String::as_str));
        let (mut qemu, mut console) = Process::start_dialogue(&argv, &plug.placement)?;

        let fetched = |server: &Server, file: &str, patience, console: &Dialogue| {
            server.await_file(file, patience).map_err(|error| {
                let lines: Vec<_> = console.lines.try_iter().collect();
                let end = lines.get(lines.len().saturating_sub(30)..).unwrap_or_default();
                Error::Check(format!("{error}\n{}\n{}", server.log(), end.join("\n")))
            })
        };
        record.step(Step::Link, || {
            for file in self.fetches {
                fetched(&server, file, PATIENCE, &console)?;
            }
            Ok("DHCP and TFTP".into())
        })?;
        match self.typed {
            None => record.step(Step::Ping, || {
                ping(weir.uplink()?.host(), &lab.image.busybox.to_string_lossy())
            })?,
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
                console.stdin.write_all(typed.as_bytes()).map_err(Error::io("write to", &dir))?;
                console.stdin.flush().map_err(Error::io("write to", &dir))?;
            }
            fetched(&server, self.again, PATIENCE, &console)?;
            Ok(if self.typed.is_some() { "boots again" } else { "by itself" }.into())
        })?;
        record.step(Step::Drops, || {
            drops(&[before, weir.stats()?], &weir::name(GUEST), &[FEW_BUFFERS, SUPPLICANT])
        })?;
        qemu.check_alive()?;
        stop(weir)
    }

    /// Changes the arguments as a user would by hand.
    fn adapt(&self, mut plug: Plug) -> Plug {
        for arg in &mut plug.qemu_args {
            if arg.starts_with("memory-backend=") {
                *arg = format!("{},{arg}", self.machine);
            } else if arg.starts_with("virtio-net-pci,") {
                arg.push_str(self.device);
            }
        }
        plug
    }
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

    /// Waits until all of `file` was sent.
    fn await_file(&self, file: &str, patience: Duration) -> Result<()> {
        let (sent, to) = (format!("/{file} to "), address::ip(GUEST));
        wait_until(&format!("the firmware to fetch {file}"), patience, || {
            let is_it =
                |line: &str| line.contains(" sent ") && line.ends_with(&format!("{sent}{to}"));
            Ok(self.log().lines().any(is_it))
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
        assert_eq!(U_BOOT.adapt(plug).qemu_args, args);
    }
}
