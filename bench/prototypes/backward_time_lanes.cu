// Prototype of the backward pass with time lanes (f32, zoh, state 16, no options): measured in ../NOTES.md. A start, not
// a part of the library. Compiled with -DWW=4 -DCH=32 -DMINB=3 -DHU=1 (warps, channels a block, blocks a multiprocessor,
// channels of a pair unrolled). `ck` are the states before every 32 frames; dbp and dcp get sums over each block's
// channels, dap sums over time.
typedef unsigned int u32; typedef long long i64;
#ifndef MINB
#define MINB 1
#endif
#define LANES 8
#define SS 2
#define TL 4
#define FF 8
#define TT 32
#define NT (WW*32)
#define KK (CH/WW)
#define PX 36
#define ROWS (CH/4)
#define FR_ (TT*CH/4/NT)
#define FR (FR_>=4?4:FR_>=2?2:1)
#define NU ((TT*CH/4/FR+NT-1)/NT)
#define NB ((TT*4+NT-1)/NT)
__device__ __forceinline__ float mufu(float x){ float y; asm("ex2.approx.ftz.f32 %0,%1;":"=f"(y):"f"(x)); return y; }
template<int N> struct alignas(4*N) V { float v[N]; };
struct Stage { float d[CH][PX],u[CH][PX],y[CH][PX]; float b[16][PX],c[16][PX]; };
// q and s of a pair of channels: [channel][value][lane][t]; at the end of a tile dB and dC of a warp.
struct Scratch { float v[2][2][LANES][PX]; };
struct Sh { Stage st; Scratch sc[WW]; float carry[CH][16]; float da[CH][TL][16]; };
extern "C" __global__ void __launch_bounds__(NT,MINB) bwd(const float* __restrict__ x,const float* __restrict__ dt,const float* __restrict__ A,const float* __restrict__ Bm,const float* __restrict__ Cm,const float* __restrict__ dy,
  const float* __restrict__ ck, float* __restrict__ dx,float* __restrict__ ddt,float* __restrict__ dbp,float* __restrict__ dcp,float* __restrict__ dap,int L,int D){
  extern __shared__ __align__(16) unsigned char mem[];
  Sh& sh=*reinterpret_cast<Sh*>(mem);
  const int blocks=D/CH; const int row=blockIdx.x/blocks, bi=blockIdx.x%blocks, c0=bi*CH;
  const int tid=threadIdx.x, w=tid/32, i=tid%32, lane=i%8, tl=i/8;
  const i64 base=(i64)row*L*D+c0; const i64 pb=(i64)row*L*16;
  const int tiles=(L+TT-1)/TT;
  for(int k=tid;k<CH*16;k+=NT) (&sh.carry[0][0])[k]=0;
  for(int k=tid;k<CH*TL*16;k+=NT) (&sh.da[0][0][0])[k]=0;
  auto load=[&](int t0,V<4> (&rx)[NU][FR],V<4> (&rd)[NU][FR],V<4> (&ry)[NU][FR],V<4> (&rb)[NB],V<4> (&rc)[NB]){
#pragma unroll
    for(int k=0;k<NU;k++){ int q=k*NT+tid; int f=q/ROWS*FR, j=q%ROWS;
      bool in=(TT*CH/4/FR%NT==0||q<TT*CH/4/FR);
#pragma unroll
      for(int e=0;e<FR;e++){ rx[k][e]=rd[k][e]=ry[k][e]=V<4>{0,0,0,0};
        if(in&&t0+f+e<L){ i64 g=base+(i64)(t0+f+e)*D+j*4; rx[k][e]=*(const V<4>*)(x+g); rd[k][e]=*(const V<4>*)(dt+g); ry[k][e]=*(const V<4>*)(dy+g);} } }
#pragma unroll
    for(int k=0;k<NB;k++){ int q=k*NT+tid; int r=q/4,col=q%4*4; bool ok=(TT*4%NT==0||q<TT*4)&&t0+r<L;
      rb[k]=rc[k]=V<4>{0,0,0,0};
      if(ok){ i64 g=pb+(i64)(t0+r)*16+col; rb[k]=*(const V<4>*)(Bm+g); rc[k]=*(const V<4>*)(Cm+g);} }
  };
  auto prefetch=[&](int t0){ // a line of 128 bytes is 32 channels of a frame
    for(int q=tid;q<TT*CH/32*3;q+=NT){ int r=q/3/((CH+31)/32),j=q/3%((CH+31)/32)*32; const float* p=(q%3==0?x:q%3==1?dt:dy)+base+(i64)(t0+r)*D+j; asm volatile("prefetch.global.L2 [%0];"::"l"(p)); } };
  auto store=[&](Stage& t,V<4> (&rx)[NU][FR],V<4> (&rd)[NU][FR],V<4> (&ry)[NU][FR],V<4> (&rb)[NB],V<4> (&rc)[NB]){
#pragma unroll
    for(int k=0;k<NU;k++){ int q=k*NT+tid; int f=q/ROWS*FR, j=q%ROWS;
      if(TT*CH/4/FR%NT==0||q<TT*CH/4/FR){
#pragma unroll
      for(int c=0;c<4;c++){ V<FR> d,u,y;
#pragma unroll
        for(int e=0;e<FR;e++){ d.v[e]=rd[k][e].v[c]; u.v[e]=rd[k][e].v[c]*rx[k][e].v[c]; y.v[e]=ry[k][e].v[c]; }
        *(V<FR>*)&t.d[c*ROWS+j][f]=d; *(V<FR>*)&t.u[c*ROWS+j][f]=u; *(V<FR>*)&t.y[c*ROWS+j][f]=y; } } }
#pragma unroll
    for(int k=0;k<NB;k++){ int q=k*NT+tid; int r=q/4,col=q%4*4;
      if(TT*4%NT==0||q<TT*4){
#pragma unroll
      for(int e=0;e<4;e++){ t.b[col+e][r]=rb[k].v[e]; t.c[col+e][r]=rc[k].v[e]; } } }
  };
  // u holds q = sum of lambda*b, y holds sum of s*a: dx = delta q, ddt = sa + x q.
  auto finish=[&](Stage& t,int t0){
#pragma unroll
    for(int k=0;k<NU;k++){ int q=k*NT+tid; int f=q/ROWS*FR, j=q%ROWS;
      if(TT*CH/4/FR%NT==0||q<TT*CH/4/FR){
      V<4> ox[FR],od[FR];
#pragma unroll
      for(int e=0;e<FR;e++){ if(t0+f+e<L){ i64 g=base+(i64)(t0+f+e)*D+j*4; ox[e]=*(const V<4>*)(x+g); } }
#pragma unroll
      for(int c=0;c<4;c++){ V<FR> qv=*(V<FR>*)&t.u[c*ROWS+j][f],sv=*(V<FR>*)&t.y[c*ROWS+j][f],dv=*(V<FR>*)&t.d[c*ROWS+j][f];
#pragma unroll
        for(int e=0;e<FR;e++){ od[e].v[c]=fmaf(ox[e].v[c],qv.v[e],sv.v[e]); ox[e].v[c]=dv.v[e]*qv.v[e]; } }
#pragma unroll
      for(int e=0;e<FR;e++) if(t0+f+e<L){ i64 g=base+(i64)(t0+f+e)*D+j*4; *(V<4>*)(dx+g)=ox[e]; *(V<4>*)(ddt+g)=od[e]; } } }
  };
  Stage& t=sh.st;
  for(int tile=tiles-1;tile>=0;tile--){
    const int t0=tile*TT;
    { V<4> rx[NU][FR],rd[NU][FR],ry[NU][FR],rb[NB],rc[NB];
      load(t0,rx,rd,ry,rb,rc);
      if(tile<tiles-1) finish(t,t0+TT);
      store(t,rx,rd,ry,rb,rc); }
    if(tile>0) prefetch(t0-TT);
    __syncthreads();
    float b[SS][FF],c[SS][FF],db[SS][FF],dc[SS][FF];
#pragma unroll
    for(int s=0;s<SS;s++)
#pragma unroll
      for(int f=0;f<FF;f+=4){ V<4> bv=*(V<4>*)&t.b[lane+8*s][tl*FF+f],cv=*(V<4>*)&t.c[lane+8*s][tl*FF+f];
#pragma unroll
        for(int e=0;e<4;e++){ b[s][f+e]=bv.v[e]; c[s][f+e]=cv.v[e]; db[s][f+e]=dc[s][f+e]=0; } }
#pragma unroll 1
    for(int pair=0;pair<KK/2;pair++){
#pragma unroll HU
    for(int half=0;half<2;half++){
      const int m=w*KK+pair*2+half; const int ch=4*(m%ROWS)+m/ROWS;
      float a[SS],hs[SS];
#pragma unroll
      for(int s=0;s<SS;s++){ a[s]=A[(i64)(c0+ch)*16+lane+8*s]; hs[s]=tile>0?ck[(((i64)row*tiles+tile)*D+c0+ch)*16+lane+8*s]:0.f; }
      float d[FF],u[FF],g[FF];
#pragma unroll
      for(int f=0;f<FF;f+=4){ V<4> dv=*(V<4>*)&t.d[m][tl*FF+f],uv=*(V<4>*)&t.u[m][tl*FF+f],yv=*(V<4>*)&t.y[m][tl*FF+f];
#pragma unroll
        for(int e=0;e<4;e++){ d[f+e]=dv.v[e]; u[f+e]=uv.v[e]; g[f+e]=yv.v[e]; } }
      float e[SS][FF],h[SS][FF],end[SS],P[SS],car[SS];
      float sum=d[0];
#pragma unroll
      for(int f=1;f<FF;f++) sum+=d[f];
#pragma unroll
      for(int s=0;s<SS;s++){ float a2=a[s]*1.4426950408889634f;
#pragma unroll
        for(int f=0;f<FF;f++){ e[s][f]=mufu(a2*d[f]); h[s][f]=u[f]*b[s][f]; end[s]=f?fmaf(e[s][f],end[s],h[s][f]):h[s][f]; }
        P[s]=mufu(a2*sum); }
      // adjoints from zero
#pragma unroll
      for(int s=0;s<SS;s++){ car[s]=0;
#pragma unroll
        for(int f=FF-1;f>=0;f--) car[s]=e[s][f]*(f<FF-1?fmaf(c[s][f],g[f],car[s]):c[s][f]*g[f]); }
      // both scanned over the time lanes
#pragma unroll
      for(int s=0;s<SS;s++){
        float lc=sh.carry[m][lane+8*s];
        if(tl==0) end[s]=fmaf(P[s],hs[s],end[s]);
        if(tl==TL-1) car[s]=fmaf(P[s],lc,car[s]);
        float hp=__shfl_up_sync(~0u,end[s],8), Pp=__shfl_up_sync(~0u,P[s],8);
        float cn=__shfl_down_sync(~0u,car[s],8), Pn=__shfl_down_sync(~0u,P[s],8);
        float P1=P[s]*Pp,P2=P[s]*Pn;
        if(tl>=1) end[s]=fmaf(P[s],hp,end[s]);
        if(tl<=TL-2) car[s]=fmaf(P[s],cn,car[s]);
        hp=__shfl_up_sync(~0u,end[s],16); cn=__shfl_down_sync(~0u,car[s],16);
        if(tl>=2) end[s]=fmaf(P1,hp,end[s]);
        if(tl<=TL-3) car[s]=fmaf(P2,cn,car[s]);
        float in=__shfl_up_sync(~0u,end[s],8), cin=__shfl_down_sync(~0u,car[s],8);
        hs[s]=tl==0?hs[s]:in;
        if(tl==0) sh.carry[m][lane+8*s]=car[s];
        car[s]=tl==TL-1?lc:cin;
      }
      float q[FF],sa[FF];
#pragma unroll
      for(int s=0;s<SS;s++){
        h[s][0]=fmaf(e[s][0],hs[s],h[s][0]);
#pragma unroll
        for(int f=1;f<FF;f++) h[s][f]=fmaf(e[s][f],h[s][f-1],h[s][f]);
        float da=0;
#pragma unroll
        for(int f=FF-1;f>=0;f--){
          float lam=fmaf(c[s][f],g[f],car[s]);
          dc[s][f]=fmaf(g[f],h[s][f],dc[s][f]);
          db[s][f]=fmaf(lam,u[f],db[s][f]);
          car[s]=e[s][f]*lam;
          float sp=car[s]*(f?h[s][f-1]:hs[s]);
          da=fmaf(sp,d[f],da);
          sa[f]=s?fmaf(sp,a[s],sa[f]):sp*a[s];
          q[f]=s?fmaf(lam,b[s][f],q[f]):lam*b[s][f];
        }
        sh.da[m][tl][lane+8*s]+=da;
      }
#pragma unroll
      for(int f=0;f<FF;f+=4){ *(V<4>*)&sh.sc[w].v[half][0][lane][tl*FF+f]=V<4>{q[f],q[f+1],q[f+2],q[f+3]}; *(V<4>*)&sh.sc[w].v[half][1][lane][tl*FF+f]=V<4>{sa[f],sa[f+1],sa[f+2],sa[f+3]}; }
    }
      __syncwarp();
      { const int half=i/16, val=i/8%2, quad=i%8; V<4> sum=*(V<4>*)&sh.sc[w].v[half][val][0][quad*4];
#pragma unroll
        for(int l=1;l<LANES;l++){ V<4> p=*(V<4>*)&sh.sc[w].v[half][val][l][quad*4];
#pragma unroll
          for(int e=0;e<4;e++) sum.v[e]+=p.v[e]; }
        const int m=w*KK+pair*2+half;
        *(V<4>*)(val?&t.y[m][quad*4]:&t.u[m][quad*4])=sum; }
      __syncwarp();
    }
    // dB, dC over the warps
    float* mine=&sh.sc[w].v[0][0][0][0]; // [32 slots][PX]
#pragma unroll
    for(int s=0;s<SS;s++)
#pragma unroll
      for(int f=0;f<FF;f+=4){ *(V<4>*)&mine[(lane+8*s)*PX+tl*FF+f]=V<4>{db[s][f],db[s][f+1],db[s][f+2],db[s][f+3]}; *(V<4>*)&mine[(16+lane+8*s)*PX+tl*FF+f]=V<4>{dc[s][f],dc[s][f+1],dc[s][f+2],dc[s][f+3]}; }
    __syncthreads();
    // a thread: value (n, 4 frames); parts are {row, block, L, 16}
    for(int o=tid;o<256;o+=NT){ int n=o%32, quad=o/32; V<4> sum={0,0,0,0};
#pragma unroll
      for(int v=0;v<WW;v++){ V<4> p=*(V<4>*)&(&sh.sc[v].v[0][0][0][0])[n*PX+quad*4];
#pragma unroll
        for(int e=0;e<4;e++) sum.v[e]+=p.v[e]; }
      float* to=(n<16?dbp:dcp)+(((i64)row*blocks+bi)*L)*16+n%16;
#pragma unroll
      for(int e=0;e<4;e++) if(t0+quad*4+e<L) to[(i64)(t0+quad*4+e)*16]=sum.v[e]; }
  }
  finish(t,0);
  for(int q=tid;q<CH*16;q+=NT){ int m=q/16; int ch=4*(m%ROWS)+m/ROWS; dap[((i64)row*D+c0+ch)*16+q%16]=sh.da[m][0][q%16]+sh.da[m][1][q%16]+sh.da[m][2][q%16]+sh.da[m][3][q%16]; }
}
extern "C" __global__ void smem(int* o){ *o=sizeof(Sh); }
