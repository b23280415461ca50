//! A libvirt domain with the output of `weir qemu-args --for libvirt`, under a separate libvirtd: the installed one, or
//! that of another release.

use std::{
    fs,
    os::unix::{fs::PermissionsExt, net::UnixStream},
    path::{Path, PathBuf},
    time::Duration,
};

use weir_bed::{
    address,
    error::{Error, Result},
    libvirt,
    netns::Netns,
    packages,
    process::{Dialogue, Process, run, wait_until},
    qemu::{BOOT_PATIENCE, Guest},
    weir::{Vif, Weir},
};

use super::{
    bed::{Bed, TESTED},
    linux::{Expected, Return, Streams, try_out},
    qemu_cells::stop,
    record::{Record, Verdict},
};

/// Longest time for libvirtd to start, and for a domain.
const PATIENCE: Duration = Duration::from_secs(30);

/// The installed libvirt.
pub fn domain(bed: &mut Bed<'_>, record: &mut Record) -> Result<Verdict> {
    match packages::ensure_libvirt(&bed.lab.workspace) {
        Ok(()) => run_under(None, bed, record),
        Err(error) => Ok(Verdict::Skipped(format!("no libvirt: {error}"))),
    }
}

/// The libvirt of Debian 13.
pub fn domain_of_13(bed: &mut Bed<'_>, record: &mut Record) -> Result<Verdict> {
    of_suite("trixie", bed, record)
}

/// The libvirt of Debian sid.
pub fn domain_of_sid(bed: &mut Bed<'_>, record: &mut Record) -> Result<Verdict> {
    of_suite("sid", bed, record)
}

fn of_suite(suite: &str, bed: &mut Bed<'_>, record: &mut Record) -> Result<Verdict> {
    let root = bed.lab.workspace.target("roots")?.join(format!("{suite}-libvirt"));
    match packages::version_of("libvirt-daemon-system", &root) {
        Ok(version) => record.version = Some(version),
        Err(_) => {
            return Ok(Verdict::Skipped(format!("no libvirt of {suite}: `make hooks` gets it")));
        }
    }
    run_under(Some(&root), bed, record)
}

fn run_under(root: Option<&Path>, bed: &mut Bed<'_>, record: &mut Record) -> Result<Verdict> {
    let (mut weir, mut partner) = bed.set_up(&[Vif { for_all_users: true, ..Vif::default() }])?;
    // Debian's QEMU user must reach sockets and files, but their directories belong to root.
    let place = tempfile::Builder::new()
        .prefix("weir-libvirt-")
        .permissions(fs::Permissions::from_mode(0o777))
        .tempdir()
        .map_err(|source| Error::Io { what: "make a directory".into(), source })?;
    let domain = Domain { place: place.path().to_path_buf() };
    domain.write(bed, &weir)?;
    // The process is declared last, so that it ends before the namespace is removed.
    let netns = Netns::new()?;
    let guest = domain.start(&netns, weir.dir(), root)?;
    let expected = Expected { queues: 1, present: &[], absent: &[], streams: Streams::Rate };
    try_out(&mut weir, &mut partner, guest, &expected, Return::ByItself, record)?;
    bed.give_back(partner);
    stop(weir)
}

/// The domain and the directories of its files.
struct Domain {
    place: PathBuf,
}

impl Domain {
    fn file(&self, name: &str) -> PathBuf {
        self.place.join(name)
    }

    /// Writes the domain's XML, its kernel, and the script that starts libvirtd.
    fn write(&self, bed: &Bed<'_>, weir: &Weir) -> Result<()> {
        let write = |name: &str, text: &[u8]| {
            let path = self.file(name);
            fs::write(&path, text).map_err(Error::io("write", &path))?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755))
                .map_err(Error::io("open to all", &path))
        };
        let image = &bed.lab.image;
        for (name, from) in [("vmlinuz", &image.kernel), ("initrd", &image.initrd)] {
            let content = fs::read(from).map_err(Error::io("read", from))?;
            write(name, &content)?;
        }
        let printed = weir.monitor_args(TESTED, &["--for", "libvirt"])?;
        write("domain.xml", self.xml(&printed)?.as_bytes())?;
        write("start.sh", self.script().as_bytes())
    }

    /// weir's output has two parts, each below a comment with its place in the XML.
    fn xml(&self, printed: &str) -> Result<String> {
        let (in_domain, in_devices) = printed
            .split_once("<!-- in <devices> -->")
            .ok_or_else(|| Error::parse("two parts of XML", printed))?;
        let [kernel, initrd, serial, console] =
            ["vmlinuz", "initrd", "serial.sock", "console"].map(|name| self.file(name));
        let cidr = address::cidr(TESTED);
        Ok(format!(
            "<domain type='qemu'>\n\
             <name>weir-frontends</name><memory unit='MiB'>256</memory><vcpu>1</vcpu>\n\
             {in_domain}\n\
             <os><type arch='x86_64' machine='pc'>hvm</type><kernel>{}</kernel><initrd>{}</initrd>\n\
             <cmdline>console=ttyS0 quiet panic=-1 ipv6.disable=1 weir.address={cidr}</cmdline></os>\n\
             <features><acpi/></features><cpu mode='custom' match='exact'><model>qemu64</model>\n\
             <feature policy='require' name='rdrand'/></cpu>\n\
             <devices><emulator>/usr/bin/qemu-system-x86_64</emulator>\n{in_devices}\n\
             <serial type='file'><source path='{}'/><target port='0'/></serial>\n\
             <serial type='unix'><source mode='bind' path='{}'/><target port='1'/></serial>\n\
             <memballoon model='none'/></devices></domain>\n",
            kernel.display(),
            initrd.display(),
            console.display(),
            serial.display(),
        ))
    }

    /// The script that runs in the mount namespace.
    fn script(&self) -> String {
        let place = self.place.display();
        format!(
            "{}\
             virsh -c qemu:///system create {place}/domain.xml\n\
             chmod 777 {place}/serial.sock\n\
             touch {place}/started\n\
             wait\n",
            libvirt::start_lines("")
        )
    }

    fn start(&self, netns: &Netns, weir_dir: &Path, root: Option<&Path>) -> Result<Guest> {
        let argv = libvirt::command(&self.file("start.sh"), root, &[weir_dir]);
        let argv: Vec<_> = argv.iter().map(String::as_str).collect();
        let log = weir_dir.join("libvirt.log");
        run(&["touch".as_ref(), log.as_os_str()])?;
        let mut process = Process::start_logged(&argv, &netns.placement(), &log)?;
        let (started, serial) = (self.file("started"), self.file("serial.sock"));
        wait_until("libvirt to start the domain", PATIENCE, || {
            process.check_alive()?;
            Ok(started.exists())
        })
        .map_err(|error| {
            Error::Check(format!("{error}\n{}", fs::read_to_string(&log).unwrap_or_default()))
        })?;
        let stream = UnixStream::connect(&serial).map_err(Error::io("connect to", &serial))?;
        let reader = stream.try_clone().map_err(Error::io("connect to", &serial))?;
        let dialogue = Dialogue::over(reader, stream);
        Guest::over("libvirt", process, dialogue, self.file("console"), BOOT_PATIENCE)
    }
}
