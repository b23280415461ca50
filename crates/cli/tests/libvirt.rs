//! `weir libvirt hook` as libvirt calls it, the installed one or that of the system in `WEIR_LIBVIRT_ROOT`: domains come
//! and go, in order and out of order, and leave no interface behind.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rand::{RngExt as _, SeedableRng as _};
use rand_xoshiro::Xoshiro256PlusPlus;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::Value;
use tempfile::TempDir;
use weir_bed::libvirt;
use weir_bed::process::{Placement, Process, wait_until};
use weir_testing::{eventually, has, is_root};

/// The operations of the random test. `WEIR_LIBVIRT_OPERATIONS` sets another number.
const OPERATIONS: usize = 20;

/// The domains that start at once.
const DOMAINS: usize = 20;

/// What a disk boots, at 0x7c00. It lets go of devices that are detached and powers the machine off when it is asked to,
/// by the registers that QEMU's machine `pc` has under SeaBIOS.
#[rustfmt::skip]
const GUEST: [u8; 44] = [
    0xb8, 0x00, 0x01,       //        mov ax, 0x0100    the power button
    0xba, 0x02, 0x06,       //        mov dx, 0x0602    PM1_EN
    0xef,                   //        out dx, ax
    0xfb,                   //        sti
    0xf4,                   // again: hlt               until the timer's next tick
    0x66, 0x31, 0xc0,       //        xor eax, eax
    0xba, 0x10, 0xae,       //        mov dx, 0xae10    the bus
    0x66, 0xef,             //        out dx, eax
    0xb2, 0x04,             //        mov dl, 0x04      slots to empty
    0x66, 0xed,             //        in eax, dx
    0xb2, 0x08,             //        mov dl, 0x08      eject them
    0x66, 0xef,             //        out dx, eax
    0xba, 0x00, 0x06,       //        mov dx, 0x0600    PM1_STS
    0xed,                   //        in ax, dx
    0xf6, 0xc4, 0x01,       //        test ah, 1        the button is pressed
    0x74, 0xe6,             //        jz again
    0xba, 0x04, 0x06,       //        mov dx, 0x0604    PM1_CNT
    0xb8, 0x00, 0x20,       //        mov ax, 0x2000    off
    0xef,                   //        out dx, ax
    0xf4,                   // end:   hlt
    0xeb, 0xfd,             //        jmp end
];

/// The time that libvirtd has to start.
const PATIENCE: Duration = Duration::from_secs(60);

/// Two tenants. {RATE} stands for what each interface of one may send.
const TENANTS: &str = "\
[network.red]
vlan = 20
[network.blue]
vlan = 21
[template.red]
network = \"red\"
rate = \"{RATE}\"
[[template.red.filter]]
direction = \"tx\"
match = \"tcp dst port 25\"
action = \"drop\"
[template.blue]
network = \"blue\"
[vif-on-demand.\"hot*\"]
directory = \"{HOT}\"
template = \"red\"
forget_s = 1
";

/// weir with its keeper, and a libvirtd whose hook calls weir. Each process ends before the directory is removed.
struct Host {
    libvirt: Process,
    weir: Child,
    /// The process that has replaced the first weir.
    later: Option<Pid>,
    keeper: Child,
    dir: TempDir,
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(later) = self.later {
            let _ = kill_process(later, Signal::KILL);
        }
        for process in [&mut self.weir, &mut self.keeper] {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

impl Host {
    /// Starts a host; `None` if libvirt or QEMU is missing here and no other system is named.
    fn start() -> Option<Self> {
        Self::named("one")
    }

    /// A host for tests that take long: `make hooks` names a system, `make test` does not.
    fn of_named_system() -> Option<Self> {
        libvirt::root().and_then(|_| Self::start())
    }

    /// A host with this name. Its identity follows from the length of the name: libvirt migrates
    /// nothing between hosts of equal identity.
    fn named(name: &str) -> Option<Self> {
        let root = libvirt::root();
        let is_installed = || {
            has("virsh", "libvirt-clients")
                && has("libvirtd", "libvirt-daemon-system")
                && has("qemu-system-x86_64", "qemu-system-x86")
        };
        if !(is_root("libvirtd in namespaces") && (root.is_some() || is_installed())) {
            return None;
        }
        // QEMU's user must reach the sockets.
        let dir = tempfile::Builder::new()
            .prefix("weir-libvirt-")
            .permissions(fs::Permissions::from_mode(0o755))
            .tempdir()
            .unwrap();
        let place = dir.path();
        let keeper_socket = place.join("keeper.sock");
        write_config(place, "1Gbit");
        let mut keeper = Command::new(env!("CARGO_BIN_EXE_weir-keeper"));
        let keeper = keeper.arg(&keeper_socket).stdin(Stdio::null()).spawn().unwrap();
        eventually("the keeper listens", || weir_keeper::connect(&keeper_socket).ok());
        let weir = run(place);

        let program = env!("CARGO_BIN_EXE_weir");
        let install = format!(
            "mkdir {0}/run\nmount --bind {0}/run /run/libvirt\nhostname {name}\n\
             echo 'host_uuid = \"{1}\"' >>/etc/libvirt/libvirtd.conf",
            place.display(),
            uuid(0xff00 + name.len())
        );
        let script =
            format!("{}touch {}/started\nwait\n", libvirt::start_lines(&install), place.display());
        let path = place.join("start.sh");
        fs::write(&path, script).unwrap();
        let programs = Path::new(program).parent().unwrap();
        let argv = libvirt::command(&path, root.as_deref(), &[programs]);
        let argv: Vec<_> = argv.iter().map(String::as_str).collect();
        let libvirt =
            Process::start_logged(&argv, &Placement::default(), &place.join("libvirt.log"))
                .unwrap();
        let mut host = Self { libvirt, weir, later: None, keeper, dir };
        host.vifs();
        wait_until("libvirtd to answer", PATIENCE, || {
            host.libvirt.check_alive()?;
            Ok(host.dir.path().join("started").exists())
        })
        .unwrap_or_else(|error| panic!("{error}\n{}", host.log()));
        // libvirtd runs already, and is not restarted.
        let control = host.path("control.sock").display().to_string();
        for _ in 0..2 {
            let said = host.inside(&[program, "--control", &control, "libvirt", "install"]);
            assert!(said.status.success(), "{}", text(&said));
            let expected = "/etc/libvirt/hooks/qemu.d/weir: libvirt calls it from now on\n";
            assert_eq!(text(&said), expected);
        }
        let hot = host.path("hot").display().to_string();
        let made = host.inside(&["install", "-d", "-o", "libvirt-qemu", &hot]);
        assert!(made.status.success(), "{}", text(&made));
        Some(host)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn log(&self) -> String {
        let read = |name| fs::read_to_string(self.path(name)).unwrap_or_default();
        format!("{}\n{}", read("libvirt.log"), read("log"))
    }

    /// Runs a command in libvirtd's namespaces.
    fn inside(&self, argv: &[&str]) -> Output {
        let outer = self.libvirt.pid();
        let children = format!("/proc/{outer}/task/{outer}/children");
        let children = fs::read_to_string(children).unwrap();
        let inner = children.split_whitespace().next().unwrap();
        let mut command = Command::new("nsenter");
        command.args(["--target", inner, "--mount", "--pid", "--root", "--wd"]);
        command.args(["timeout", "300"]).args(argv);
        command.stdin(Stdio::null()).output().unwrap()
    }

    fn virsh(&self, args: &[&str]) -> Output {
        self.inside(&[&["virsh", "-c", "qemu:///system"], args].concat())
    }

    fn does(&self, args: &[&str]) -> String {
        let output = self.virsh(args);
        assert!(output.status.success(), "{args:?}: {}\n{}", text(&output), self.log());
        text(&output)
    }

    fn weir_command(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.arg("--control").arg(self.path("control.sock")).args(args).output().unwrap()
    }

    /// The interfaces that libvirt keeps, as `weir vif list` reports them.
    fn vifs(&self) -> Vec<Value> {
        let listed = eventually("weir answers", || {
            let output = self.weir_command(&["vif", "list", "--json"]);
            output.status.success().then_some(output.stdout)
        });
        let mut vifs: Vec<Value> = serde_json::from_slice(&listed).unwrap();
        assert!(vifs.iter().any(|vif| vif["config"]["name"] == "file"), "the file's own stays");
        vifs.retain(|vif| vif["config"]["by"].is_string());
        vifs
    }

    fn names(&self) -> Vec<String> {
        let name = |vif: &Value| vif["config"]["name"].as_str().unwrap().to_owned();
        let mut names: Vec<_> = self.vifs().iter().map(name).collect();
        names.sort();
        names
    }

    /// The output of a command of weir's, which has to succeed.
    fn has_weir(&self, args: &[&str]) -> String {
        let output = self.weir_command(args);
        assert!(output.status.success(), "{args:?}: {}\n{}", text(&output), self.log());
        text(&output)
    }

    fn config_of(&self, name: &str) -> Value {
        let mut configs = self.vifs().into_iter().map(|vif| vif["config"].clone());
        configs.find(|config| config["name"] == name).unwrap()
    }

    /// SIGKILL.
    fn end_weir(&mut self) {
        match self.later.take() {
            None => {
                self.weir.kill().unwrap();
                self.weir.wait().unwrap();
            }
            Some(later) => {
                kill_process(later, Signal::KILL).unwrap();
                eventually("it ends", || test_kill_process(later).is_err().then_some(()));
            }
        }
    }

    /// Kills weir with SIGKILL. The next weir starts as it would under a service manager.
    fn kill_weir(&mut self) {
        self.end_weir();
        self.weir = run(self.dir.path());
    }

    fn upgrade_weir(&mut self) {
        self.vifs();
        let said = self.has_weir(&["upgrade"]);
        let (_, rest) = said.split_once("process ").unwrap();
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        match self.later.replace(Pid::from_raw(digits.parse().unwrap()).unwrap()) {
            None => drop(self.weir.wait().unwrap()),
            Some(before) => {
                eventually("the one before ends", || {
                    test_kill_process(before).is_err().then_some(())
                });
            }
        }
    }

    fn restart_libvirtd(&self) {
        // The script waits for the end of libvirtd. QEMU goes on meanwhile.
        let script = format!(
            "pid=$(cat /run/libvirt/libvirtd.pid); kill $pid; \
             while kill -0 $pid 2>/dev/null; do sleep 0.1; done\n\
             ({}) >/dev/null 2>&1 </dev/null",
            libvirt::daemon_lines()
        );
        let output = self.inside(&["sh", "-c", &script]);
        assert!(output.status.success(), "{}\n{}", text(&output), self.log());
    }

    /// The file of an interface that is attached later.
    fn device(&self, name: &str, number: usize) -> String {
        let place = self.dir.path().display().to_string();
        let path = self.path(&format!("{name}.xml"));
        fs::write(&path, interface(name, number).replace("{DIR}", &place)).unwrap();
        path.to_string_lossy().into_owned()
    }

    /// A disk for a domain, with [`GUEST`].
    fn disk(&self, number: usize) -> String {
        let path = self.path(&format!("d{number}.img"));
        let mut sector = [0; 512];
        sector[..GUEST.len()].copy_from_slice(&GUEST);
        sector[510..].copy_from_slice(&[0x55, 0xaa]);
        fs::write(&path, sector).unwrap();
        format!(
            "<disk type='file' device='disk'><driver name='qemu' type='raw'/>\
             <source file='{}'/><target dev='hda' bus='ide'/></disk>",
            path.display()
        )
    }

    /// The guest turns the domain off. It hears nothing before it has booted.
    fn shut_down(&self, domain: &str) {
        eventually(&format!("{domain} ends by itself"), || {
            let _ = self.virsh(&["shutdown", domain]);
            let running = self.does(&["list", "--name"]);
            (!running.split_whitespace().any(|it| it == domain)).then_some(())
        });
    }

    /// A domain's file. `{DIR}` stands for the directory of the sockets.
    fn domain(&self, number: usize, elements: &str, interfaces: &str) -> String {
        let place = self.dir.path().display().to_string();
        let xml = format!(
            "<domain type='qemu'><name>d{number}</name><uuid>{}</uuid>\n\
             <metadata><weir:vifs xmlns:weir='urn:weir:libvirt'>{elements}</weir:vifs></metadata>\n\
             <memory unit='MiB'>32</memory><vcpu>1</vcpu>\n\
             <memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking>\n\
             <os><type arch='x86_64' machine='pc'>hvm</type></os><features><acpi/></features>\n\
             <devices><emulator>/usr/bin/qemu-system-x86_64</emulator>{interfaces}\
             <memballoon model='none'/></devices></domain>\n",
            uuid(number)
        );
        let path = self.path(&format!("d{number}.xml"));
        fs::write(&path, xml.replace("{DIR}", &place)).unwrap();
        path.to_string_lossy().into_owned()
    }
}

/// Writes weir's configuration, with the rate of one tenant.
fn write_config(place: &Path, rate: &str) {
    let [control, keeper] = ["control.sock", "keeper.sock"].map(|name| place.join(name));
    let switch = format!("[switch]\ncontrol = {control:?}\nkeeper = {keeper:?}\nworkers = 1\n");
    let hot = place.join("hot").display().to_string();
    let tenants = TENANTS.replace("{RATE}", rate).replace("{HOT}", &hot);
    fs::write(place.join("weir.toml"), format!("{switch}[vif.file]\n{tenants}")).unwrap();
}

/// The number that an environment variable names.
fn number(variable: &str) -> Option<usize> {
    std::env::var(variable).ok()?.parse().ok()
}

fn uuid(number: usize) -> String {
    format!("6e1c0a9e-0a6e-4d8e-9c55-{number:012x}")
}

fn run(dir: &Path) -> Child {
    let log = fs::File::options().append(true).create(true).open(dir.join("log")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.arg("run").arg(dir.join("weir.toml"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

fn interface(name: &str, number: usize) -> String {
    format!(
        "<interface type='vhostuser'><mac address='52:54:00:00:{number:02}:01'/>\
         <source type='unix' path='{{DIR}}/{name}.sock' mode='client'>\
         <reconnect enabled='yes' timeout='1'/></source><model type='virtio'/>\
         <rom enabled='no'/></interface>"
    )
}

#[test]
fn root_a_domain_has_its_interface_from_its_start_to_its_end() {
    let Some(mut host) = Host::start() else { return };
    let elements = "<weir:vif vlan='10' rate='1Gbit'><weir:filter>tx drop tcp dst port 25</weir:filter></weir:vif>\
                    <weir:vif socket='{DIR}/late.sock' vlan='11' mac='52:54:00:00:02:01'/>";
    let file = host.domain(1, elements, &interface("web1", 1));
    host.does(&["define", &file]);
    assert_eq!(host.names(), Vec::<String>::new(), "a definition makes nothing");
    host.does(&["start", "d1"]);
    assert_eq!(host.names(), ["late", "web1"]);
    let web = host.vifs().into_iter().find(|vif| vif["config"]["name"] == "web1").unwrap();
    let config = &web["config"];
    assert_eq!(config["by"], format!("libvirt:{}", uuid(1)));
    assert_eq!(config["mac"], "52:54:00:00:01:01");
    assert_eq!(config["socket_mode"], "0660");
    assert_eq!(config["filter"].as_array().unwrap().len(), 1, "{config}");
    assert!(web["unsaved"].is_null(), "nobody has to save it: {web}");

    // An attached device finds the socket that waits for it.
    let device = host.device("late", 2);
    host.does(&["attach-device", "d1", &device, "--live"]);
    let shown = host.weir_command(&["vif", "show", "late"]);
    assert!(shown.status.success() && text(&shown).contains("late"), "{}", text(&shown));

    // An interface and its changed settings outlive both weir and libvirtd.
    let set = host.weir_command(&["vif", "set", "web1", "rate=2Gbit"]);
    assert!(set.status.success(), "{}", text(&set));
    host.kill_weir();
    host.restart_libvirtd();
    assert_eq!(host.names(), ["late", "web1"]);
    let gone = host.weir_command(&["vif", "del", "late"]);
    assert!(gone.status.success(), "{}", text(&gone));
    host.restart_libvirtd();
    // libvirtd answers before it has looked at each domain.
    eventually("what is missing is there again", || {
        (host.names() == ["late", "web1"]).then_some(())
    });
    let shown = host.weir_command(&["vif", "show", "web1"]);
    assert!(text(&shown).contains("2Gbit"), "{}", text(&shown));
    assert!(host.does(&["list"]).contains("d1"));

    // libvirtd comes back while weir is away: the domain goes on.
    host.end_weir();
    host.restart_libvirtd();
    assert!(host.does(&["list"]).contains("d1"), "{}", host.log());
    // The end of a domain waits for a weir that is about to be back.
    let (said, weir) = std::thread::scope(|scope| {
        let end = scope.spawn(|| text(&host.virsh(&["destroy", "d1"])));
        std::thread::sleep(Duration::from_secs(1));
        let weir = run(host.dir.path());
        (end.join().unwrap(), weir)
    });
    host.weir = weir;
    // libvirt may see the end of the QEMU that it has killed before its own command is done.
    assert!(["destroyed", "domain is not running"].iter().any(|it| said.contains(it)), "{said}");
    assert_eq!(host.names(), Vec::<String>::new());
    host.does(&["undefine", "d1"]);
}

#[test]
fn root_an_interface_is_there_while_its_domain_has_a_qemu() {
    let Some(mut host) = Host::of_named_system() else { return };
    let saved = host.path("saved").display().to_string();
    let elements = "<weir:vif vlan='7'/><weir:vif socket='{DIR}/late.sock'/>";
    let devices = host.disk(1) + &interface("web1", 1);
    host.does(&["define", &host.domain(1, elements, &devices)]);
    let late = host.device("late", 2);
    let both: &[&str] = &["late", "web1"];
    for (operation, left) in [
        (&["start", "d1"][..], both),
        (&["suspend", "d1"], both),
        (&["resume", "d1"], both),
        (&["reset", "d1"], both),
        (&["attach-device", "d1", &late, "--live"], both),
        (&["detach-device", "d1", &late, "--live"], both),
        (&["save", "d1", &saved], &[]),
        (&["restore", &saved], both),
        (&["managedsave", "d1"], &[]),
        (&["start", "d1"], both),
        (&["destroy", "d1"], &[]),
        (&["start", "d1"], both),
    ] {
        host.does(operation);
        assert_eq!(host.names(), left, "{operation:?}\n{}", host.log());
    }
    // Ends that nobody asked libvirt for: the guest's own, and that of a QEMU that is killed.
    let gone = || eventually("the interfaces go", || host.names().is_empty().then_some(()));
    host.shut_down("d1");
    gone();
    host.does(&["start", "d1"]);
    assert_eq!(host.names(), both);
    let killed = host.inside(&["sh", "-c", "kill -KILL $(cat /run/libvirt/qemu/d1.pid)"]);
    assert!(killed.status.success(), "{}", text(&killed));
    gone();
    host.does(&["undefine", "d1"]);
    host.does(&["create", &host.domain(1, elements, &devices)]);
    assert_eq!(host.names(), both);
    // Each of these replaces weir's process.
    for end in [Host::upgrade_weir, Host::kill_weir, Host::upgrade_weir, Host::upgrade_weir] {
        end(&mut host);
        assert_eq!(host.names(), both);
        eventually("QEMU is connected", || {
            let mut vifs = host.vifs().into_iter();
            vifs.any(|vif| vif["config"]["name"] == "web1" && vif["state"] == "connected")
                .then_some(())
        });
    }
    host.does(&["destroy", "d1"]);
    assert_eq!(host.names(), Vec::<String>::new());
}

/// No hook is called for such a device, and the domain has no element of weir's.
#[test]
fn root_a_device_that_is_attached_has_an_interface_by_its_pattern() {
    let Some(host) = Host::start() else { return };
    host.does(&["create", &host.domain(1, "", &host.disk(1))]);
    let device = host.device("hot1", 2);
    let listens = fs::read_to_string(&device)
        .unwrap()
        .replace("/hot1.sock' mode='client'>", "/hot/hot1.sock' mode='server'>")
        .replace("<reconnect enabled='yes' timeout='1'/>", "");
    fs::write(&device, listens).unwrap();
    let socket = host.path("hot/hot1.sock");
    let attached = || {
        host.does(&["attach-device", "d1", &device, "--live"]);
        eventually("weir is connected", || {
            let vif = host.vifs().pop().filter(|vif| vif["state"] == "connected")?;
            let config = &vif["config"];
            assert_eq!((&config["name"], &config["template"]), (&"hot1".into(), &"red".into()));
            assert_eq!(config["by"], "on-demand:hot*", "{config}");
            assert_eq!(config["sharing"]["rate"], "1Gbit", "{config}");
            Some(())
        });
    };
    let gone = || eventually("the interface goes", || host.names().is_empty().then_some(()));
    for _ in 0..2 {
        attached();
        // The guest lets go of the device when it has booted.
        eventually("the device goes", || {
            let _ = host.virsh(&["detach-device", "d1", &device, "--live"]);
            (!host.does(&["dumpxml", "d1"]).contains("hot1.sock")).then_some(())
        });
        gone();
        assert!(!socket.exists());
    }
    attached();
    host.shut_down("d1");
    gone();
    host.does(&["create", &host.domain(1, "", &host.disk(1))]);
    attached();
    host.does(&["destroy", "d1"]);
    gone();
}

#[test]
fn root_a_domain_with_a_virtual_iommu_gets_an_interface_behind_it_by_one_command() {
    let Some(host) = Host::start() else { return };
    let file =
        host.domain(1, "", "<iommu model='intel'><driver intremap='on' iotlb='on'/></iommu>");
    let xml = fs::read_to_string(&file).unwrap();
    let xml = xml.replace("machine='pc'", "machine='q35'");
    fs::write(&file, xml.replace("<acpi/>", "<acpi/><ioapic driver='qemu'/>")).unwrap();
    host.does(&["define", &file]);
    let control = host.path("control.sock").display().to_string();
    for command in [&["define", "d1", "web1", "access_platform=true"][..], &["check", "d1"]] {
        let program = [env!("CARGO_BIN_EXE_weir"), "--control", &control, "libvirt"];
        let said = host.inside(&[&program[..], command].concat());
        assert!(said.status.success(), "{}", text(&said));
    }
    host.does(&["start", "d1"]);
    let config = host.config_of("web1");
    assert_eq!(config["access_platform"], true, "{config}");
    eventually("QEMU is connected", || {
        host.vifs().iter().any(|vif| vif["state"] == "connected").then_some(())
    });
    let devices = host.does(&["qemu-monitor-command", "d1", "--hmp", "info qtree"]);
    for has in ["dev: intel-iommu", "device-iotlb = true", "ats = true", "iommu_platform = true"] {
        assert!(devices.contains(has), "{has}: {devices}");
    }
    host.does(&["destroy", "d1"]);
    assert_eq!(host.names(), Vec::<String>::new());
}

#[test]
fn root_domains_of_two_tenants_have_what_their_templates_say() {
    let Some(host) = Host::of_named_system() else { return };
    let elements = ["<weir:vif template='red'/>", "<weir:vif template='blue' rate='2Gbit'/>"];
    for (domain, element) in (1..).zip(elements) {
        let interfaces = interface(&format!("web{domain}"), domain);
        host.does(&["create", &host.domain(domain, element, &interfaces)]);
    }
    let (red, blue) = (host.config_of("web1"), host.config_of("web2"));
    for (config, tenant, rate, number) in [(&red, "red", "1Gbit", 1), (&blue, "blue", "2Gbit", 2)] {
        assert_eq!(config["template"], tenant, "{config}");
        assert_eq!(config["vlan"]["network"], tenant, "{config}");
        assert_eq!(config["sharing"]["rate"], rate, "{config}");
        assert_eq!(config["by"], format!("libvirt:{}", uuid(number)));
        assert_eq!(config["mac"], format!("52:54:00:00:0{number}:01"));
        assert_eq!(config["socket_mode"], "0660");
    }
    let rules = |config: &Value| config["filter"].as_array().map_or(0, Vec::len);
    assert_eq!((rules(&red), rules(&blue)), (1, 0), "{red}\n{blue}");

    // The template changes while the tenant's domain runs. Keys of the domain's own XML stay.
    write_config(host.dir.path(), "3Gbit");
    host.has_weir(&["reload"]);
    for (name, rate) in [("web1", "3Gbit"), ("web2", "2Gbit")] {
        assert_eq!(host.config_of(name)["sharing"]["rate"], rate);
    }
    let green = host.domain(3, "<weir:vif template='green'/>", &interface("web3", 3));
    let refused = host.virsh(&["create", &green]);
    assert!(!refused.status.success() && text(&refused).contains("green"), "{}", text(&refused));
    assert_eq!(host.names(), ["web1", "web2"]);
    // The end of one domain leaves the interface of the other.
    host.does(&["destroy", "d1"]);
    assert_eq!(host.names(), ["web2"]);
    host.does(&["destroy", "d2"]);
    assert_eq!(host.names(), Vec::<String>::new());
}

#[test]
fn root_many_domains_start_and_end_at_once() {
    let Some(host) = Host::of_named_system() else { return };
    let files: Vec<_> = (1..=DOMAINS)
        .map(|domain| {
            let interfaces = interface(&format!("web{domain}"), domain);
            host.domain(domain, "<weir:vif template='red'/>", &interfaces)
        })
        .collect();
    // libvirt asks QEMU once for its capabilities. Until libvirt knows them, each start would ask again.
    host.does(&["domcapabilities"]);
    let host = &host;
    std::thread::scope(|scope| {
        for file in &files {
            // Twenty emulated processors would take each other's time.
            scope.spawn(move || host.does(&["create", "--paused", file]));
        }
    });
    let mut all: Vec<_> = (1..=DOMAINS).map(|domain| format!("web{domain}")).collect();
    all.sort();
    assert_eq!(host.names(), all);
    std::thread::scope(|scope| {
        for domain in 1..=DOMAINS {
            scope.spawn(move || host.does(&["destroy", &format!("d{domain}")]));
        }
    });
    assert_eq!(host.names(), Vec::<String>::new());
}

#[test]
fn root_a_domain_that_cannot_have_its_interface_does_not_start_and_says_why() {
    let Some(host) = Host::start() else { return };
    let begin = "<weir:vif/>";
    let (first, second) = (interface("web1", 1), interface("web2", 2));
    for (elements, interfaces, says) in [
        ("<weir:vif rat='1Gbit'/>", first.clone(), "did you mean `rate`?"),
        ("<weir:vif/><weir:vif/>", first.clone(), "no interface of type"),
        ("<weir:vif name='file'/>", first.clone(), "file exists already"),
        // The first is made, the second refused.
        ("<weir:vif/><weir:vif network='nowhere'/>", format!("{first}{second}"), "nowhere"),
        ("<weir:vif socket='/etc/passwd'/>", String::new(), "/etc/passwd"),
        // QEMU would wait for the socket for ever.
        ("<weir:vif socket_mode='0600'/>", first.clone(), "QEMU cannot connect to web1"),
        ("<weir:vif socket='{DIR}/control.sock'/>", String::new(), "control"),
    ] {
        let file = host.domain(1, elements, &interfaces);
        let output = host.virsh(&["create", &file]);
        assert!(!output.status.success() && text(&output).contains(says), "{}", text(&output));
        assert_eq!(host.names(), Vec::<String>::new(), "{elements}");
    }
    // Nobody takes another domain's interface.
    host.does(&["create", &host.domain(1, begin, &first)]);
    let thief = host.virsh(&["create", &host.domain(2, "<weir:vif/>", &first)]);
    let owner = format!("libvirt:{} keeps it", uuid(1));
    assert!(text(&thief).contains(&owner), "{}", text(&thief));
    assert_eq!(host.names(), ["web1"]);
    // A domain without weir's elements starts whatever weir does.
    let plain = host.domain(3, "", "");
    fs::write(&plain, fs::read_to_string(&plain).unwrap().replace("urn:weir:libvirt", "urn:other"))
        .unwrap();
    host.does(&["create", &plain]);
    for domain in ["d1", "d3"] {
        host.does(&["destroy", domain]);
    }
    assert_eq!(host.names(), Vec::<String>::new());
}

#[test]
fn root_a_domain_that_libvirt_knows_gets_an_interface_by_one_command() {
    let Some(host) = Host::start() else { return };
    let file = host.domain(1, "", "");
    let bare = fs::read_to_string(&file).unwrap();
    let (begin, rest) = bare.split_once("<metadata>").unwrap();
    let rest = rest.split_once("</metadata>").unwrap().1;
    let (memory, rest) = rest.split_once("<memoryBacking>").unwrap();
    let rest = rest.split_once("</memoryBacking>").unwrap().1;
    fs::write(&file, [begin, memory, rest].concat()).unwrap();
    host.does(&["define", &file]);
    let control = host.path("control.sock").display().to_string();
    let asks = |args: &[&str]| {
        let program = [env!("CARGO_BIN_EXE_weir"), "--control", &control, "libvirt"];
        host.inside(&[&program[..], args].concat())
    };
    let says = |args: &[&str], expected: &str| {
        let said = text(&asks(args));
        assert!(said.contains(expected), "{args:?}: {said}");
    };
    says(&["check", "nobody"], "failed to get domain 'nobody'");
    says(&["check", "d1"], "the domain has no <vif> of weir's: `weir libvirt define");
    says(&["define", "d1", "web1", "rat=1"], "did you mean `rate`?");
    says(&["define", "d1", "web1", "rate"], "write KEY=VALUE");
    for _ in 0..2 {
        says(&["define", "d1", "web1", "vlan=9"], "from the domain's next start on");
        says(&["check", "d1"], "VLAN 9: comes when the domain starts");
    }
    // A domain that was first written by hand, and then changed by the command.
    let xml = host.does(&["dumpxml", "--inactive", "d1"]);
    let (begin, rest) = xml.split_once("<qemu:override>").unwrap();
    let rest = rest.split_once("</qemu:override>").unwrap().1;
    fs::write(&file, [begin, rest].concat()).unwrap();
    host.does(&["define", &file]);
    let version = text(&host.inside(&["/usr/bin/qemu-system-x86_64", "--version"]));
    let (_, version) = version.split_once("QEMU emulator version ").unwrap();
    let major: u32 = version.split('.').next().unwrap().parse().unwrap();
    let (vectors, well) = ("ends with interrupt vectors where", "comes when the domain starts");
    says(&["check", "d1"], if major < 10 { vectors } else { well });
    says(&["define", "d1", "web1", "vlan=9"], "from the domain's next start on");
    assert!(host.does(&["dumpxml", "--inactive", "d1"]).contains("name='vectors'"));
    says(&["check", "d1"], well);
    let by = format!("by=libvirt:{}", uuid(1));
    let added = host.weir_command(&["vif", "add", "web1", &by, "socket_mode=0600"]);
    assert!(added.status.success(), "{}", text(&added));
    says(&["check", "d1"], "QEMU cannot connect to web1: ");
    assert!(host.weir_command(&["vif", "del", "web1"]).status.success());
    let xml = host.does(&["dumpxml", "--inactive", "d1"]);
    assert_eq!(xml.matches("<interface type='vhostuser'>").count(), 1, "{xml}");
    host.does(&["start", "d1"]);
    assert_eq!(host.names(), ["web1"]);
    let said = text(&asks(&["check", "d1"]));
    assert!(said.contains("VLAN 9: ") && !said.contains("comes"), "{said}");
    let hook = "/etc/libvirt/hooks/qemu.d/weir";
    assert!(host.inside(&["chmod", "644", hook]).status.success());
    says(
        &["check", "d1"],
        "libvirt has no hook that makes the domain's interfaces: `weir libvirt install`",
    );
    assert!(host.inside(&["chmod", "755", hook]).status.success());
    host.does(&["destroy", "d1"]);
    assert_eq!(host.names(), Vec::<String>::new());
    let taken = "an interface called file exists already, and is not the domain's";
    says(&["define", "d1", "file"], taken);
    // The interface of the file may come later.
    let xml = host.does(&["dumpxml", "--inactive", "d1"]);
    fs::write(&file, xml.replace("name=\"web1\"", "name=\"file\"")).unwrap();
    host.does(&["define", &file]);
    says(&["check", "d1"], taken);
    says(&["undefine", "d1", "file"], "file: gone from the domain's next start on");
    let xml = host.does(&["dumpxml", "--inactive", "d1"]);
    let again = asks(&["undefine", "d1", "file"]);
    assert!(again.status.success(), "{}", text(&again));
    assert_eq!(text(&again), "file: the domain has no such interface\n");
    assert_eq!(host.does(&["dumpxml", "--inactive", "d1"]), xml);
    says(&["undefine", "d9", "file"], "libvirt says: ");
    assert!(!xml.contains("urn:weir") && !xml.contains("vhostuser"), "{xml}");
}

#[test]
fn root_an_interface_moves_with_its_domain_and_stays_where_a_move_fails() {
    let (Some(here), Some(there)) = (Host::start(), Host::named("three")) else { return };
    here.does(&["create", &here.domain(1, "<weir:vif vlan='7'/>", &interface("web1", 1))]);
    let running = here.does(&["dumpxml", "--migratable", "d1"]);
    let [from, to] = [&here, &there].map(|host| host.dir.path().display().to_string());
    let arriving = running.replace(&from, &to);
    let moves = |xml: &str| {
        let file = here.path("arriving.xml");
        fs::write(&file, xml).unwrap();
        let uri = format!("qemu+unix:///system?socket={to}/run/libvirt-sock");
        let file = file.to_string_lossy();
        let how = ["--live", "--migrateuri", "tcp://127.0.0.1", "--xml", &file];
        here.virsh(&[&["migrate", "d1", &uri], &how[..]].concat())
    };
    // The file there has an interface of this name.
    let refused = moves(&arriving.replace("<weir:vif ", "<weir:vif name='file' "));
    assert!(text(&refused).contains("file exists already"), "{}", text(&refused));
    assert_eq!((here.names(), there.names()), (vec!["web1".into()], vec![]));
    assert!(here.does(&["list"]).contains("running"));

    let moved = moves(&arriving);
    assert!(moved.status.success(), "{}\n{}\n{}", text(&moved), here.log(), there.log());
    assert_eq!((here.names(), there.names()), (vec![], vec!["web1".into()]));
    there.does(&["destroy", "d1"]);
    assert_eq!(there.names(), Vec::<String>::new());
}

/// Whatever is done to two domains, weir has the interfaces of those that run, and no others.
#[test]
fn root_operations_by_chance_leave_no_interface_behind() {
    let Some(mut host) = Host::start() else { return };
    let operations = number("WEIR_LIBVIRT_OPERATIONS").unwrap_or(OPERATIONS);
    let seed = number("WEIR_LIBVIRT_SEED").unwrap_or(49) as u64;
    println!("WEIR_LIBVIRT_SEED={seed}");
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    for domain in 1..=2 {
        let interfaces = host.disk(domain) + &interface(&format!("web{domain}"), domain);
        let elements =
            format!("<weir:vif vlan='7'/><weir:vif socket='{{DIR}}/late{domain}.sock'/>");
        host.does(&["define", &host.domain(domain, &elements, &interfaces)]);
        host.device(&format!("late{domain}"), 2 + domain);
    }
    for done in 0..operations {
        let domain = random.random_range(1..=2);
        let name = format!("d{domain}");
        let device = host.path(&format!("late{domain}.xml")).display().to_string();
        let operation = random.random_range(0..12);
        // A socket has one front end. QEMU waits for ever for a socket that another device has.
        let is_attached = || {
            text(&host.virsh(&["dumpxml", &name])).matches("<interface type='vhostuser'>").count()
                == 2
        };
        // Some operations do not fit the domain's state, and libvirt refuses them.
        let what: &[&str] = match operation {
            0..=2 => &["start", &name],
            3..=4 => &["destroy", &name],
            5 => &["suspend", &name],
            6 => &["resume", &name],
            7 => &["managedsave", &name],
            8 => &["reset", &name],
            9 if is_attached() => &["domstate", &name],
            9 => &["attach-device", &name, &device, "--live"],
            10 => &["detach-device", &name, &device, "--live"],
            _ => &["shutdown", &name],
        };
        match random.random_range(0..16) {
            0 | 1 => host.kill_weir(),
            2 => host.upgrade_weir(),
            _ => {}
        }
        if random.random_range(0..12) == 0 {
            host.restart_libvirtd();
        }
        let said = text(&host.virsh(what));
        let look = || {
            let running = host.does(&["list", "--name"]);
            let running = running.split_whitespace();
            let mut running: Vec<_> = running
                .flat_map(|name| ["late", "web"].map(|kind| name.replace('d', kind)))
                .collect();
            running.sort();
            (host.names(), running)
        };
        // A domain that ends by itself may do so between the two looks.
        let end = Instant::now() + Duration::from_secs(10);
        let (mut names, mut running) = look();
        while names != running && Instant::now() < end {
            (names, running) = look();
        }
        assert_eq!(
            names,
            running,
            "seed {seed}, operation {done}: {what:?}: {said}\n{}",
            host.log()
        );
    }
    for domain in ["d1", "d2"] {
        let _ = host.virsh(&["destroy", domain]);
        host.does(&["undefine", domain, "--managed-save"]);
    }
    assert_eq!(host.names(), Vec::<String>::new());
}
