//! The guests: para-virtualised, each with one interface.

use crate::address;

/// A guest, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Domain(pub u8);

impl Domain {
    /// The name `xl` knows it by.
    pub fn name(self) -> String {
        format!("u{}", self.0)
    }

    /// The address of its interface.
    pub fn ip(self) -> String {
        address::ip(self.0)
    }

    /// The same with its prefix length.
    pub fn cidr(self) -> String {
        address::cidr(self.0)
    }

    /// Its interface, in the words of xl-network-configuration(5).
    pub fn vif(self) -> String {
        format!("mac={},bridge=br0,script=vif-test", address::mac(self.0))
    }

    /// Where its configuration is in dom0.
    pub fn config_path(self) -> String {
        format!("etc/xen/{}.cfg", self.name())
    }

    /// Its configuration, as of xl.cfg(5).
    pub fn config(self) -> String {
        format!(
            "name = \"{}\"\nkernel = \"/boot/vmlinuz\"\nramdisk = \"/boot/domu.img\"\n\
             extra = \"console=hvc0 quiet weir.shell=hvc0 ipv6.disable=1\"\nmemory = 256\nvif = [\"{}\"]\n",
            self.name(),
            self.vif()
        )
    }
}
