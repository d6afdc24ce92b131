//! Generates the messages and the client of the broker's service from the published .proto, without protoc.

use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = std::env::var_os("PROTO_ROOT").map_or_else(|| PathBuf::from("../../.."), PathBuf::from);
    let proto = root.join("ledgermq/protocol/ledgermq.proto");
    println!("cargo:rerun-if-changed={}", proto.display());
    println!("cargo:rerun-if-env-changed=PROTO_ROOT");
    let described = protox::compile([proto], [root])?;
    tonic_prost_build::configure().build_server(false).compile_fds(described)?;
    Ok(())
}
