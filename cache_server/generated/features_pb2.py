"""Messages of the feature service.

Made by ``scripts/generate_stubs.py`` from cache_server/proto/features.proto.
"""

from typing import Any

from google.protobuf import descriptor_pool, message_factory

_POOL = descriptor_pool.DescriptorPool()
_POOL.AddSerializedFile(
    b'\n%cache_server/generated/features.proto\x12'
    b'\x12hopper.features.v1"\x88\x01\n\x10FetchRowsRequest'
    b'\x12\x12\n\x04kind\x18\x01 \x01(\tR\x04kind\x12\x12\n\x04type\x18\x02 \x01(\tR\x04type'
    b'\x12\x10\n\x03ids\x18\x03 \x01(\x0cR\x03ids\x12\x14\n\x05dtype\x18\x04 \x01(\tR\x05dtype'
    b'\x12\x10\n\x03dim\x18\x05 \x01(\x04R\x03dim\x12\x12\n\x04form\x18\x06 \x01(\tR\x04form":'
    b'\n\x08RowChunk\x12\x12\n\x04data\x18\x01 \x01(\x0cR\x04data\x12\x1a\n\x08checks'
    b'um\x18\x02 \x01(\x06R\x08checksum"P\n\x16SampleNeighborsReq'
    b'uest\x126\n\x05draws\x18\x01 \x03(\x0b2 .hopper.features.v1'
    b'.NeighborDrawR\x05draws"\xeb\x02\n\x0cNeighborDraw\x12\x1a\n'
    b'\x08relation\x18\x01 \x01(\tR\x08relation\x12\x14\n\x05nodes\x18\x02 \x01(\x0c'
    b'R\x05nodes\x12\x16\n\x06fanout\x18\x04 \x01(\x12R\x06fanout\x12\x10\n\x03key\x18\x05'
    b' \x01(\x06R\x03key\x12\x1b\n\tlater_key\x18\t \x01(\x06R\x08laterKey\x12\x1e'
    b'\n\ndependence\x18\n \x01(\x04R\ndependence\x12\x18\n\x07elapse'
    b"d\x18\x0b \x01(\x04R\x07elapsed\x12\x14\n\x05times\x18\x06 \x01(\x0cR\x05times\x12'"
    b'\n\x0fwithout_sources\x18\x07 \x01(\x0cR\x0ewithoutSources\x12'
    b'1\n\x14without_destinations\x18\x08 \x01(\x0cR\x13withoutDe'
    b'stinations\x12\x16\n\x06method\x18\x0c \x01(\tR\x06method\x12\x18\n\x07ve'
    b'rsion\x18\r \x01(\rR\x07versionJ\x04\x08\x03\x10\x04"?\n\rNeighborCh'
    b'unk\x12\x12\n\x04data\x18\x01 \x01(\x0cR\x04data\x12\x1a\n\x08checksum\x18\x02 \x01('
    b'\x06R\x08checksum"\x11\n\x0fDescribeRequest"\x93\x01\n\x10Table'
    b'Description\x12\x12\n\x04kind\x18\x01 \x01(\tR\x04kind\x12\x12\n\x04type\x18'
    b'\x02 \x01(\tR\x04type\x12\x19\n\x08first_id\x18\x03 \x01(\x03R\x07firstId\x12\x14'
    b'\n\x05count\x18\x04 \x01(\x03R\x05count\x12\x10\n\x03dim\x18\x05 \x01(\x03R\x03dim\x12\x14'
    b'\n\x05dtype\x18\x06 \x01(\tR\x05dtype"\xd5\x02\n\x11ServerDescripti'
    b'on\x12\x16\n\x06server\x18\x01 \x01(\x03R\x06server\x12\x18\n\x07servers\x18\x02 '
    b'\x01(\x03R\x07servers\x12<\n\x06tables\x18\x03 \x03(\x0b2$.hopper.fe'
    b'atures.v1.TableDescriptionR\x06tables\x12O\n\x08ve'
    b'rsions\x18\x04 \x03(\x0b23.hopper.features.v1.Server'
    b'Description.VersionsEntryR\x08versions\x12&\n\x0fi'
    b'ds_per_request\x18\x05 \x01(\x03R\ridsPerRequest\x12\x1a\n\x08d'
    b'ivision\x18\x06 \x01(\tR\x08division\x1a;\n\rVersionsEntry'
    b'\x12\x10\n\x03key\x18\x01 \x01(\tR\x03key\x12\x14\n\x05value\x18\x02 \x01(\tR\x05value'
    b':\x028\x01"\x16\n\x14DescribeGraphRequest"~\n\x10GraphDes'
    b'cription\x12\x14\n\x05graph\x18\x01 \x01(\tR\x05graph\x12\x1c\n\tpartit'
    b'ion\x18\x02 \x01(\tR\tpartition\x126\n\x03ids\x18\x03 \x03(\x0b2$.hopp'
    b'er.features.v1.TableDescriptionR\x03ids"d\n\x0e'
    b'ReadIdsRequest\x12\x12\n\x04kind\x18\x01 \x01(\tR\x04kind\x12\x12\n\x04ty'
    b'pe\x18\x02 \x01(\tR\x04type\x12\x14\n\x05first\x18\x03 \x01(\x03R\x05first\x12\x14\n\x05'
    b'count\x18\x04 \x01(\x03R\x05count".\n\x12HealthCheckRequest'
    b'\x12\x18\n\x07service\x18\x01 \x01(\tR\x07service"\xa0\x01\n\x13HealthChe'
    b'ckResponse\x12M\n\x06status\x18\x01 \x01(\x0e25.hopper.feat'
    b'ures.v1.HealthCheckResponse.ServingStatu'
    b'sR\x06status":\n\rServingStatus\x12\x0b\n\x07UNKNOWN\x10\x00\x12'
    b'\x0b\n\x07SERVING\x10\x01\x12\x0f\n\x0bNOT_SERVING\x10\x022\xcf\x03\n\x0eFeatur'
    b'eService\x12Q\n\tFetchRows\x12$.hopper.features.'
    b'v1.FetchRowsRequest\x1a\x1c.hopper.features.v1'
    b'.RowChunk0\x01\x12b\n\x0fSampleNeighbors\x12*.hopper.'
    b'features.v1.SampleNeighborsRequest\x1a!.hop'
    b'per.features.v1.NeighborChunk0\x01\x12V\n\x08Descr'
    b'ibe\x12#.hopper.features.v1.DescribeRequest'
    b'\x1a%.hopper.features.v1.ServerDescription\x12'
    b'_\n\rDescribeGraph\x12(.hopper.features.v1.De'
    b'scribeGraphRequest\x1a$.hopper.features.v1.'
    b'GraphDescription\x12M\n\x07ReadIds\x12".hopper.fea'
    b'tures.v1.ReadIdsRequest\x1a\x1c.hopper.feature'
    b's.v1.RowChunk0\x01b\x06proto3'
)


def _message(name: str) -> Any:
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"hopper.features.v1.{name}"))


FetchRowsRequest = _message("FetchRowsRequest")
RowChunk = _message("RowChunk")
SampleNeighborsRequest = _message("SampleNeighborsRequest")
NeighborDraw = _message("NeighborDraw")
NeighborChunk = _message("NeighborChunk")
DescribeRequest = _message("DescribeRequest")
TableDescription = _message("TableDescription")
ServerDescription = _message("ServerDescription")
DescribeGraphRequest = _message("DescribeGraphRequest")
GraphDescription = _message("GraphDescription")
ReadIdsRequest = _message("ReadIdsRequest")
HealthCheckRequest = _message("HealthCheckRequest")
HealthCheckResponse = _message("HealthCheckResponse")
