//! libvirt in a test's own namespaces: it sees none of the machine's directories, and the machine's
//! libvirtd does not see it.

use std::{
    env,
    path::{Path, PathBuf},
};

/// Environment variable with the root of another system (made by debootstrap) whose libvirt and QEMU are used.
pub const LIBVIRT_ROOT: &str = "WEIR_LIBVIRT_ROOT";

/// The directories of libvirtd. Each is empty at its start.
const DIRECTORIES: &str =
    "/etc/libvirt /run/libvirt /var/lib/libvirt /var/log/libvirt /var/cache/libvirt";

/// QEMU's settings. Debian's user for QEMU may not look into the machine's control groups, and
/// cannot be confined here. The group is root's, since a socket of a weir that root has started
/// belongs to that group.
const QEMU_CONF: &str =
    "security_driver = \"none\"\ncgroup_controllers = []\nnamespaces = []\ngroup = \"root\"\n";

/// Starts a script in its own namespaces. QEMU is a daemon: it ends with their first process.
const NAMESPACES: [&str; 8] =
    ["unshare", "--mount", "--uts", "--pid", "--kill-child", "--fork", "--mount-proc", "sh"];

/// Runs the script `$2` in the system `$1`, which sees the other directories of this machine. Files
/// that it writes elsewhere disappear with the namespaces, so that tests can share the system.
const ENTER: &str = "\
set -e
system=$1 script=$2
shift 2
over=${script%/*}/system
mkdir \"$over\"
mount -t tmpfs tmpfs \"$over\"
mkdir \"$over/upper\" \"$over/work\" \"$over/root\"
mount -t overlay -o \"lowerdir=$system,upperdir=$over/upper,workdir=$over/work\" overlay \"$over/root\"
for dir in /dev /proc /sys \"$@\"; do
    mkdir -p \"$over/root$dir\"
    mount --rbind \"$dir\" \"$over/root$dir\"
done
exec chroot \"$over/root\" sh \"$script\"
";

/// The system of [`LIBVIRT_ROOT`].
pub fn root() -> Option<PathBuf> {
    env::var_os(LIBVIRT_ROOT).filter(|root| !root.is_empty()).map(PathBuf::from)
}

/// The command that starts a script in its own namespaces, and in the system `root` if there is one. That system sees
/// this one's temporary files, and the directories `seen`.
pub fn command(script: &Path, root: Option<&Path>, seen: &[&Path]) -> Vec<String> {
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let mut argv: Vec<String> = NAMESPACES.map(String::from).into();
    match root {
        None => argv.push(text(script)),
        Some(root) => {
            argv.extend(["-c", ENTER, "enter"].map(String::from));
            argv.extend([root, script, &env::temp_dir()].map(text));
            argv.extend(seen.iter().copied().map(text));
        }
    }
    argv
}

/// The lines of a script that start libvirtd and wait until it answers. The lines `before` run once
/// libvirtd's directories exist.
pub fn start_lines(before: &str) -> String {
    format!(
        "set -e\n\
         for dir in {DIRECTORIES}; do mkdir -p $dir; mount -t tmpfs -o mode=755 tmpfs $dir; done\n\
         printf '%s' '{QEMU_CONF}' >/etc/libvirt/qemu.conf\n\
         echo 'auth_unix_rw = \"none\"' >/etc/libvirt/libvirtd.conf\n\
         {before}\n\
         /usr/sbin/virtlogd --pid-file /run/libvirt/virtlogd.pid &\n\
         {}",
        daemon_lines()
    )
}

/// The lines that start libvirtd alone, again or for the first time.
pub fn daemon_lines() -> String {
    "/usr/sbin/libvirtd --timeout 600 --pid-file /run/libvirt/libvirtd.pid &\n\
     for i in $(seq 300); do virsh -c qemu:///system list >/dev/null 2>&1 && break; sleep 0.1; done\n"
        .into()
}
