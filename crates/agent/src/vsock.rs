//! A vsock connection to the host; the only file with `unsafe`, since `rustix` has no type for the
//! address.

use std::fs::File;
use std::io;

use rustix::net::addr::{SocketAddrArg, SocketAddrLen, SocketAddrOpaque};
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};

/// `struct sockaddr_vm` of the host.
struct HostPort(u32);

// SAFETY: the pointer is to a whole sockaddr_vm, all of it initialized, that lives until `f` returns; the
// length is that of the struct.
unsafe impl SocketAddrArg for HostPort {
    unsafe fn with_sockaddr<R>(
        &self,
        f: impl FnOnce(*const SocketAddrOpaque, SocketAddrLen) -> R,
    ) -> R {
        let address = libc::sockaddr_vm {
            svm_family: AddressFamily::VSOCK.as_raw(),
            svm_reserved1: 0,
            svm_port: self.0,
            svm_cid: libc::VMADDR_CID_HOST,
            svm_zero: [0; 4],
        };
        f(std::ptr::from_ref(&address).cast(), size_of_val(&address) as SocketAddrLen)
    }
}

/// Connects to `port` of the host. The kernel gives up after two seconds.
pub(crate) fn connect_to_host(port: u32) -> io::Result<File> {
    let socket = socket_with(AddressFamily::VSOCK, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    connect(&socket, &HostPort(port))?;
    Ok(File::from(socket))
}
