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
    b'raws"\xeb\x02\n\x0cNeighborDraw\x12\x1a\n'
    b'\x08relation\x18\x01 \x01(\tR\x08relatio'
    b'n\x12\x14\n\x05nodes\x18\x02 \x01(\x0cR\x05nodes\x12'
    b'\x16\n\x06fanout\x18\x04 \x01(\x12R\x06fanout\x12'
    b'\x10\n\x03key\x18\x05 \x01(\x06R\x03key\x12\x1b\n\tlat'
    b'er_key\x18\t \x01(\x06R\x08laterKey\x12\x1e'
    b'\n\ndependence\x18\n \x01(\x04R\ndepe'
    b'ndence\x12\x18\n\x07elapsed\x18\x0b \x01(\x04R'
    b'\x07elapsed\x12\x14\n\x05times\x18\x06 \x01(\x0cR'
    b"\x05times\x12'\n\x0fwithout_source"
    b's\x18\x07 \x01(\x0cR\x0ewithoutSources\x12'
    b'1\n\x14without_destinations\x18'
    b'\x08 \x01(\x0cR\x13withoutDestinatio'
    b'ns\x12\x16\n\x06method\x18\x0c \x01(\tR\x06meth'
    b'od\x12\x18\n\x07version\x18\r \x01(\rR\x07ver'
    b'sionJ\x04\x08\x03\x10\x04"?\n\rNeighborCh'
    b'unk\x12\x12\n\x04data\x18\x01 \x01(\x0cR\x04data\x12'
    b'\x1a\n\x08checksum\x18\x02 \x01(\x06R\x08check'
    b'sum"\x11\n\x0fDescribeRequest"\x93'
    b'\x01\n\x10TableDescription\x12\x12\n\x04k'
    b'ind\x18\x01 \x01(\tR\x04kind\x12\x12\n\x04type\x18'
    b'\x02 \x01(\tR\x04type\x12\x19\n\x08first_id\x18'
    b'\x03 \x01(\x03R\x07firstId\x12\x14\n\x05count\x18'
    b'\x04 \x01(\x03R\x05count\x12\x10\n\x03dim\x18\x05 \x01('
    b'\x03R\x03dim\x12\x14\n\x05dtype\x18\x06 \x01(\tR\x05d'
    b'type"\xd5\x02\n\x11ServerDescripti'
    b'on\x12\x16\n\x06server\x18\x01 \x01(\x03R\x06serv'
    b'er\x12\x18\n\x07servers\x18\x02 \x01(\x03R\x07ser'
    b'vers\x12<\n\x06tables\x18\x03 \x03(\x0b2$.h'
    b'opper.features.v1.TableD'
    b'escriptionR\x06tables\x12O\n\x08ve'
    b'rsions\x18\x04 \x03(\x0b23.hopper.fe'
    b'atures.v1.ServerDescript'
    b'ion.VersionsEntryR\x08versi'
    b'ons\x12&\n\x0fids_per_request\x18\x05'
    b' \x01(\x03R\ridsPerRequest\x12\x1a\n\x08d'
    b'ivision\x18\x06 \x01(\tR\x08division\x1a'
    b';\n\rVersionsEntry\x12\x10\n\x03key\x18'
    b'\x01 \x01(\tR\x03key\x12\x14\n\x05value\x18\x02 \x01('
    b'\tR\x05value:\x028\x01".\n\x12HealthCh'
    b'eckRequest\x12\x18\n\x07service\x18\x01 '
    b'\x01(\tR\x07service"\xa0\x01\n\x13HealthC'
    b'heckResponse\x12M\n\x06status\x18\x01'
    b' \x01(\x0e25.hopper.features.v'
    b'1.HealthCheckResponse.Se'
    b'rvingStatusR\x06status":\n\rS'
    b'ervingStatus\x12\x0b\n\x07UNKNOWN\x10'
    b'\x00\x12\x0b\n\x07SERVING\x10\x01\x12\x0f\n\x0bNOT_SE'
    b'RVING\x10\x022\x9f\x02\n\x0eFeatureServi'
    b'ce\x12Q\n\tFetchRows\x12$.hopper'
    b'.features.v1.FetchRowsRe'
    b'quest\x1a\x1c.hopper.features.'
    b'v1.RowChunk0\x01\x12b\n\x0fSampleN'
    b'eighbors\x12*.hopper.featur'
    b'es.v1.SampleNeighborsReq'
    b'uest\x1a!.hopper.features.v'
    b'1.NeighborChunk0\x01\x12V\n\x08Des'
    b'cribe\x12#.hopper.features.'
    b'v1.DescribeRequest\x1a%.hop'
    b'per.features.v1.ServerDe'
    b'scriptionb\x06proto3'
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
HealthCheckRequest = _message("HealthCheckRequest")
HealthCheckResponse = _message("HealthCheckResponse")
