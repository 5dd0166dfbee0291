"""Messages of the feature service.

Made by ``scripts/generate_stubs.py`` from cache_server/proto/features.proto.
"""

from typing import Any

from google.protobuf import descriptor_pool, message_factory

_POOL = descriptor_pool.DescriptorPool()
_POOL.AddSerializedFile(
    b'\n%cache_server/generated'
    b'/features.proto\x12\x12hopper.'
    b'features.v1"\x88\x01\n\x10FetchRow'
    b'sRequest\x12\x12\n\x04kind\x18\x01 \x01(\tR\x04'
    b'kind\x12\x12\n\x04type\x18\x02 \x01(\tR\x04type'
    b'\x12\x10\n\x03ids\x18\x03 \x01(\x0cR\x03ids\x12\x14\n\x05dt'
    b'ype\x18\x04 \x01(\tR\x05dtype\x12\x10\n\x03dim\x18'
    b'\x05 \x01(\x04R\x03dim\x12\x12\n\x04form\x18\x06 \x01(\t'
    b'R\x04form":\n\x08RowChunk\x12\x12\n\x04da'
    b'ta\x18\x01 \x01(\x0cR\x04data\x12\x1a\n\x08checks'
    b'um\x18\x02 \x01(\x06R\x08checksum"P\n\x16Sa'
    b'mpleNeighborsRequest\x126\n\x05'
    b'draws\x18\x01 \x03(\x0b2 .hopper.fea'
    b'tures.v1.NeighborDrawR\x05d'
    b'raws"\xf4\x01\n\x0cNeighborDraw\x12\x1a\n'
    b'\x08relation\x18\x01 \x01(\tR\x08relatio'
    b'n\x12\x14\n\x05nodes\x18\x02 \x01(\x0cR\x05nodes\x12'
    b'\x16\n\x06method\x18\x03 \x01(\tR\x06method\x12'
    b'\x16\n\x06fanout\x18\x04 \x01(\x12R\x06fanout\x12'
    b'\x10\n\x03key\x18\x05 \x01(\x06R\x03key\x12\x14\n\x05tim'
    b"es\x18\x06 \x01(\x0cR\x05times\x12'\n\x0fwitho"
    b'ut_sources\x18\x07 \x01(\x0cR\x0ewithou'
    b'tSources\x121\n\x14without_dest'
    b'inations\x18\x08 \x01(\x0cR\x13withoutD'
    b'estinations"?\n\rNeighborC'
    b'hunk\x12\x12\n\x04data\x18\x01 \x01(\x0cR\x04data'
    b'\x12\x1a\n\x08checksum\x18\x02 \x01(\x06R\x08chec'
    b'ksum"\x11\n\x0fDescribeRequest"'
    b'\x93\x01\n\x10TableDescription\x12\x12\n\x04'
    b'kind\x18\x01 \x01(\tR\x04kind\x12\x12\n\x04type'
    b'\x18\x02 \x01(\tR\x04type\x12\x19\n\x08first_id'
    b'\x18\x03 \x01(\x03R\x07firstId\x12\x14\n\x05count'
    b'\x18\x04 \x01(\x03R\x05count\x12\x10\n\x03dim\x18\x05 \x01'
    b'(\x03R\x03dim\x12\x14\n\x05dtype\x18\x06 \x01(\tR\x05'
    b'dtype"\xd5\x02\n\x11ServerDescript'
    b'ion\x12\x16\n\x06server\x18\x01 \x01(\x03R\x06ser'
    b'ver\x12\x18\n\x07servers\x18\x02 \x01(\x03R\x07se'
    b'rvers\x12<\n\x06tables\x18\x03 \x03(\x0b2$.'
    b'hopper.features.v1.Table'
    b'DescriptionR\x06tables\x12O\n\x08v'
    b'ersions\x18\x04 \x03(\x0b23.hopper.f'
    b'eatures.v1.ServerDescrip'
    b'tion.VersionsEntryR\x08vers'
    b'ions\x12&\n\x0fids_per_request\x18'
    b'\x05 \x01(\x03R\ridsPerRequest\x12\x1a\n\x08'
    b'division\x18\x06 \x01(\tR\x08division'
    b'\x1a;\n\rVersionsEntry\x12\x10\n\x03key'
    b'\x18\x01 \x01(\tR\x03key\x12\x14\n\x05value\x18\x02 \x01'
    b'(\tR\x05value:\x028\x01"\x16\n\x14Describ'
    b'eGraphRequest"~\n\x10GraphDe'
    b'scription\x12\x14\n\x05graph\x18\x01 \x01(\t'
    b'R\x05graph\x12\x1c\n\tpartition\x18\x02 \x01'
    b'(\tR\tpartition\x126\n\x03ids\x18\x03 \x03'
    b'(\x0b2$.hopper.features.v1.'
    b'TableDescriptionR\x03ids"d\n'
    b'\x0eReadIdsRequest\x12\x12\n\x04kind\x18'
    b'\x01 \x01(\tR\x04kind\x12\x12\n\x04type\x18\x02 \x01('
    b'\tR\x04type\x12\x14\n\x05first\x18\x03 \x01(\x03R\x05'
    b'first\x12\x14\n\x05count\x18\x04 \x01(\x03R\x05co'
    b'unt".\n\x12HealthCheckReques'
    b't\x12\x18\n\x07service\x18\x01 \x01(\tR\x07serv'
    b'ice"\xa0\x01\n\x13HealthCheckRespo'
    b'nse\x12M\n\x06status\x18\x01 \x01(\x0e25.ho'
    b'pper.features.v1.HealthC'
    b'heckResponse.ServingStat'
    b'usR\x06status":\n\rServingSta'
    b'tus\x12\x0b\n\x07UNKNOWN\x10\x00\x12\x0b\n\x07SERV'
    b'ING\x10\x01\x12\x0f\n\x0bNOT_SERVING\x10\x022\xcf'
    b'\x03\n\x0eFeatureService\x12Q\n\tFet'
    b'chRows\x12$.hopper.features'
    b'.v1.FetchRowsRequest\x1a\x1c.h'
    b'opper.features.v1.RowChu'
    b'nk0\x01\x12b\n\x0fSampleNeighbors\x12'
    b'*.hopper.features.v1.Sam'
    b'pleNeighborsRequest\x1a!.ho'
    b'pper.features.v1.Neighbo'
    b'rChunk0\x01\x12V\n\x08Describe\x12#.h'
    b'opper.features.v1.Descri'
    b'beRequest\x1a%.hopper.featu'
    b'res.v1.ServerDescription'
    b'\x12_\n\rDescribeGraph\x12(.hopp'
    b'er.features.v1.DescribeG'
    b'raphRequest\x1a$.hopper.fea'
    b'tures.v1.GraphDescriptio'
    b'n\x12M\n\x07ReadIds\x12".hopper.fe'
    b'atures.v1.ReadIdsRequest'
    b'\x1a\x1c.hopper.features.v1.Ro'
    b'wChunk0\x01b\x06proto3'
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
