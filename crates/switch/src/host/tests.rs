//! The files that set the kernel's values.

use super::*;

#[test]
fn who_has_switched_routing_off_is_named() {
    let root = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let help = || not_routing(root.path(), IPV4_ROUTING).map(|lack| lack.help.unwrap());
    write("proc/sys/net/ipv4/ip_forward", "1\n");
    assert_eq!(help(), None);
    write("proc/sys/net/ipv4/ip_forward", "0\n");
    assert!(help().unwrap().starts_with("no file"));
    write("usr/lib/sysctl.d/50-a.conf", "# net.ipv4.ip_forward = 1\nnet/ipv4/ip_forward=1\n");
    assert!(help().unwrap().starts_with("/usr/lib/sysctl.d/50-a.conf sets it to 1, and something"));
    write("etc/sysctl.d/60-b.conf", "net.ipv4.ip_forward=1\n-net.ipv4.ip_forward = 0\n");
    write("etc/sysctl.d/99-c.text", "net.ipv4.ip_forward = 1\n");
    assert!(help().unwrap().starts_with("/etc/sysctl.d/60-b.conf sets it:"));
    // Only the file in the earliest directory counts among files of the same name.
    write("run/sysctl.d/60-b.conf", "net.ipv4.ip_forward = 1\n");
    assert!(help().unwrap().starts_with("/etc/sysctl.d/60-b.conf sets it:"));
    write("etc/sysctl.conf", "net.ipv4.ip_forward = 1\n");
    assert!(help().unwrap().starts_with("/etc/sysctl.conf sets it to 1"));
}
