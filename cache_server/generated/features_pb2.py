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
    b'\tR\x05value:\x028\x01"\x16\n\x14Describe'
    b'GraphRequest"~\n\x10GraphDes'
    b'cription\x12\x14\n\x05graph\x18\x01 \x01(\tR'
    b'\x05graph\x12\x1c\n\tpartition\x18\x02 \x01('
    b'\tR\tpartition\x126\n\x03ids\x18\x03 \x03('
    b'\x0b2$.hopper.features.v1.T'
    b'ableDescriptionR\x03ids"d\n\x0e'
    b'ReadIdsRequest\x12\x12\n\x04kind\x18\x01'
    b' \x01(\tR\x04kind\x12\x12\n\x04type\x18\x02 \x01(\t'
    b'R\x04type\x12\x14\n\x05first\x18\x03 \x01(\x03R\x05f'
    b'irst\x12\x14\n\x05count\x18\x04 \x01(\x03R\x05cou'
    b'nt".\n\x12HealthCheckRequest'
    b'\x12\x18\n\x07service\x18\x01 \x01(\tR\x07servi'
    b'ce"\xa0\x01\n\x13HealthCheckRespon'
    b'se\x12M\n\x06status\x18\x01 \x01(\x0e25.hop'
    b'per.features.v1.HealthCh'
    b'eckResponse.ServingStatu'
    b'sR\x06status":\n\rServingStat'
    b'us\x12\x0b\n\x07UNKNOWN\x10\x00\x12\x0b\n\x07SERVI'
    b'NG\x10\x01\x12\x0f\n\x0bNOT_SERVING\x10\x022\xcf\x03'
    b'\n\x0eFeatureService\x12Q\n\tFetc'
    b'hRows\x12$.hopper.features.'
    b'v1.FetchRowsRequest\x1a\x1c.ho'
    b'pper.features.v1.RowChun'
    b'k0\x01\x12b\n\x0fSampleNeighbors\x12*'
    b'.hopper.features.v1.Samp'
    b'leNeighborsRequest\x1a!.hop'
    b'per.features.v1.Neighbor'
    b'Chunk0\x01\x12V\n\x08Describe\x12#.ho'
    b'pper.features.v1.Describ'
    b'eRequest\x1a%.hopper.featur'
    b'es.v1.ServerDescription\x12'
    b'_\n\rDescribeGraph\x12(.hoppe'
    b'r.features.v1.DescribeGr'
    b'aphRequest\x1a$.hopper.feat'
    b'ures.v1.GraphDescription'
    b'\x12M\n\x07ReadIds\x12".hopper.fea'
    b'tures.v1.ReadIdsRequest\x1a'
    b'\x1c.hopper.features.v1.Row'
    b'Chunk0\x01b\x06proto3'
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
