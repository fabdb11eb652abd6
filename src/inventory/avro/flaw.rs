//! Why bytes do not decode. [`Flaw`] is what the inner loop returns, [`Broken`] what leaves this module.

/// What is wrong, without where. Small and without payload, so that a `Result<u64, Flaw>` travels in
/// registers; a `String` here costs a fifth of the speed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    /// The bytes end inside a value.
    #[error("ends inside a value")]
    Truncated,
    /// A variable-length integer that does not fit 64 bits.
    #[error("an integer is longer than 64 bits")]
    Integer,
    /// A negative length, or one that runs past the end.
    #[error("a length is negative or runs past the end")]
    Length,
    /// A count of array or map items that the bytes left cannot hold.
    #[error("an item count is larger than the bytes left can hold")]
    Count,
    /// A union branch that the schema does not have.
    #[error("a union names a branch that the schema does not have")]
    Branch,
    /// Not an Avro object container file.
    #[error("is not an Avro file (an encrypted or overwritten file looks like this)")]
    NotAvro,
    /// A header key that decides how to read occurs twice.
    #[error("a metadata key occurs twice")]
    KeyTwice,
    /// The block's codec cannot decompress it.
    #[error("the block does not decompress")]
    Inflate,
    /// The block's checksum (snappy) differs.
    #[error("the block's checksum differs")]
    Checksum,
    /// A block that inflates to more than the limit of one block (1 GiB), or than memory holds.
    #[error("the block inflates to more than the limit of one block")]
    TooLarge,
    /// The bytes after a block are not the file's sync marker.
    #[error("the sync marker after the block differs")]
    Sync,
    /// A row count that is negative, or larger than the block can hold.
    #[error("the row count is negative or larger than the block can hold")]
    Rows,
    /// Bytes of a block are left after its last row.
    #[error("bytes are left after the last row")]
    LeftOver,
    /// A text that is not UTF-8.
    #[error("a text is not UTF-8")]
    NotUtf8,
    /// A value that must be there is null.
    #[error("a required value is null")]
    Null,
    /// A size or count below zero.
    #[error("a size or count is negative")]
    Negative,
    /// A location without a character.
    #[error("a location is empty")]
    NoLocation,
    /// A manifest that cannot be as short as that.
    #[error("a manifest's length is zero or negative")]
    ManifestLength,
    /// An entry status that we do not know.
    #[error("the status of an entry is unknown; the file may need a newer icewarden")]
    Status,
    /// A content that we do not know.
    #[error("the content of a file is unknown; the file may need a newer icewarden")]
    Content,
}

/// Why a container file cannot be read, and where in it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// Before the first block.
    #[error("header: {0}")]
    Header(Flaw),
    /// The schema in the header.
    #[error("schema: {0}")]
    Schema(String),
    /// A codec that we do not know.
    #[error("codec {0:?} is not supported (null, deflate, snappy, zstandard and bzip2 are)")]
    Codec(String),
    /// In a block.
    #[error("block at byte {offset}: {flaw}")]
    Block {
        /// Where the block begins in the file.
        offset: usize,
        /// What is wrong.
        flaw: Flaw,
    },
    /// In a row of a block.
    #[error("block at byte {offset}, row {row} of the file: {flaw}")]
    Row {
        /// Where the block begins in the file.
        offset: usize,
        /// Which row of the file, from zero.
        row: u64,
        /// What is wrong.
        flaw: Flaw,
    },
}
