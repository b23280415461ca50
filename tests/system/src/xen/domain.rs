//! The guests: paravirtualised, each with one interface.

use weir_bed::address;

/// A guest, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Domain(pub u8);

/// The guest with a channel for its agent. It has a device model in dom0.
pub const WITH_CHANNEL: Domain = Domain(4);

impl Domain {
    /// The guest's name for `xl`.
    pub fn name(self) -> String {
        format!("u{}", self.0)
    }

    /// The address of the guest's interface.
    pub fn ip(self) -> String {
        address::ip(self.0)
    }

    /// The address of the guest's interface with its prefix length.
    pub fn cidr(self) -> String {
        address::cidr(self.0)
    }

    /// The guest's interface, as [`interface`] writes it.
    pub fn vif(self) -> String {
        interface(&address::mac(self.0))
    }

    /// The path of the guest's configuration in dom0.
    pub fn config_path(self) -> String {
        format!("etc/xen/{}.cfg", self.name())
    }

    /// The guest's channels, as in xl.cfg(5). `xl` before 4.21 mistakes the first for the console that every guest
    /// has, and omits it.
    fn channels(self) -> Vec<String> {
        if self != WITH_CHANNEL {
            return Vec::new();
        }
        let path = format!("/run/weir/{}.agent", self.name());
        let agent = format!("name=weir.agent,connection=socket,path={path}");
        vec!["name=unused,connection=pty".to_owned(), agent]
    }

    /// The guest's configuration, as in xl.cfg(5).
    pub fn config(self) -> String {
        format!(
            "name = \"{}\"\nkernel = \"/boot/vmlinuz\"\nramdisk = \"/boot/domu.img\"\n\
             extra = \"console=hvc0 quiet weir.shell=hvc0 ipv6.disable=1\"\nmemory = 256\nvif = [\"{}\"]\nchannel = {:?}\n",
            self.name(),
            self.vif(),
            self.channels()
        )
    }
}

/// An interface with the address `mac`, as in xl-network-configuration(5).
pub fn interface(mac: &str) -> String {
    format!("mac={mac},bridge=br0,script=vif-test")
}
